"""Optimisers that touch only the rows of a batch, learning-rate schedules, clipping, averaging."""

from fieldwise.optim.adagrad import AdaGrad
from fieldwise.optim.adam import Adam
from fieldwise.optim.average import Average, averaged
from fieldwise.optim.clip import clip
from fieldwise.optim.ftrl import FTRL
from fieldwise.optim.make import OPTIMIZERS, make_optimizer
from fieldwise.optim.row_clip import clip_rows
from fieldwise.optim.rows import RowOptimizer, touched
from fieldwise.optim.schedules import SCHEDULES, learning_rate, set_learning_rate
from fieldwise.optim.sgd import SGD

__all__ = [
    "FTRL",
    "OPTIMIZERS",
    "SCHEDULES",
    "SGD",
    "AdaGrad",
    "Adam",
    "Average",
    "RowOptimizer",
    "averaged",
    "clip",
    "clip_rows",
    "learning_rate",
    "make_optimizer",
    "set_learning_rate",
    "touched",
]
