"""A model in service goes on with new files: taken in, learnt, judged, swapped in; every step logged and resumable."""
