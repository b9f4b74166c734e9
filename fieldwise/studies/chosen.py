"""Settings of each model on each look-alike, chosen on validation rows: learning rate, start of the vectors, their L2.

By log loss on a million rows of a world that no study uses (seed 100). FNN, DeepFM and the product networks: the best
of 18 to 26 settings each, from a grid (learning rates 3e-3 and 1e-2, two or three L2, for KPNN and PIN two starts) and
as many random ones (learning rate 1e-3 to 2e-2, start .01 to .3, for PIN .05 to 1, L2 1e-3 to 1e-2). The others:
learning rates of 1e-3 and 3e-3 by starts of .01, .1 and .3 (AFM, CCPM and NIFM: some of these), with an L2 of 1e-3.
"""

from __future__ import annotations

CHOSEN: dict[tuple[str, str], tuple[float, float, float]] = {
    ("criteo", "lr"): (0.001, 0.01, 0.001),
    ("criteo", "fm"): (0.003, 0.01, 0.001),
    ("criteo", "ffm"): (0.003, 0.01, 0.001),
    ("criteo", "kfm"): (0.003, 0.01, 0.001),
    ("criteo", "nifm"): (0.003, 0.3, 0.001),
    ("criteo", "afm"): (0.001, 0.01, 0.001),
    ("criteo", "ccpm"): (0.003, 0.01, 0.001),
    ("criteo", "fnn"): (0.00501, 0.0787, 0.001),
    ("criteo", "deepfm"): (0.002, 0.0137, 0.003),
    ("criteo", "ipnn"): (0.00283, 0.0236, 0.001),
    ("criteo", "kpnn"): (0.01, 0.1, 0.001),
    ("criteo", "pin"): (0.00552, 0.2887, 0.001),
    ("avazu", "lr"): (0.001, 0.01, 0.001),
    ("avazu", "fm"): (0.003, 0.01, 0.001),
    ("avazu", "ffm"): (0.003, 0.01, 0.001),
    ("avazu", "kfm"): (0.003, 0.01, 0.001),
    ("avazu", "nifm"): (0.003, 0.3, 0.001),
    ("avazu", "afm"): (0.003, 0.1, 0.001),
    ("avazu", "ccpm"): (0.003, 0.01, 0.001),
    ("avazu", "fnn"): (0.00493, 0.1647, 0.001),
    ("avazu", "deepfm"): (0.003, 0.01, 0.01),
    ("avazu", "ipnn"): (0.003, 0.01, 0.01),
    ("avazu", "kpnn"): (0.01127, 0.0238, 0.001),
    ("avazu", "pin"): (0.0102, 0.4739, 0.001),
    ("ipinyou", "lr"): (0.001, 0.01, 0.001),
    ("ipinyou", "fm"): (0.003, 0.01, 0.001),
    ("ipinyou", "ffm"): (0.003, 0.01, 0.001),
    ("ipinyou", "kfm"): (0.003, 0.01, 0.001),
    ("ipinyou", "nifm"): (0.003, 0.3, 0.001),
    ("ipinyou", "afm"): (0.001, 0.01, 0.001),
    ("ipinyou", "ccpm"): (0.003, 0.01, 0.001),
    ("ipinyou", "fnn"): (0.0017, 0.0749, 0.003),
    ("ipinyou", "deepfm"): (0.00193, 0.0514, 0.001),
    ("ipinyou", "ipnn"): (0.00391, 0.1074, 0.001),
    ("ipinyou", "kpnn"): (0.01, 0.01, 0.001),
    ("ipinyou", "pin"): (0.00229, 0.5478, 0.003),
    ("appstore", "lr"): (0.001, 0.01, 0.001),
    ("appstore", "fm"): (0.003, 0.01, 0.001),
    ("appstore", "ffm"): (0.003, 0.01, 0.001),
    ("appstore", "kfm"): (0.003, 0.01, 0.001),
    ("appstore", "nifm"): (0.003, 0.3, 0.001),
    ("appstore", "afm"): (0.003, 0.1, 0.001),
    ("appstore", "ccpm"): (0.003, 0.01, 0.001),
    ("appstore", "fnn"): (0.0016, 0.1463, 0.01),
    ("appstore", "deepfm"): (0.00536, 0.0887, 0.003),
    ("appstore", "ipnn"): (0.00877, 0.1043, 0.001),
    ("appstore", "kpnn"): (0.01, 0.1, 0.001),
    ("appstore", "pin"): (0.00764, 0.9709, 0.001),
}
