"""Tables cut by rows over workers: the model stays as it is, and only where its rows lie is changed."""
