"""From raw rows to ids on disk."""

from fieldwise.config.own_process import pyarrow_alone

pyarrow_alone()
