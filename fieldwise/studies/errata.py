"""Contradictions and mistakes in the paper and its public code, and how we read them."""

from __future__ import annotations

# Where; what it says; how we read it.
IN_THE_PAPER = (
    (
        "Section 4.4",
        "a dropout mask that scales what it keeps by 1/drop",
        "1/(1 - drop); where frequencies are normalised afterwards, as in fig10, the scale does not matter",
    ),
    (
        "Section 5.2.1",
        "an input of 10^8 dimensions",
        "10^6, as Table 4 and the counts of Table 10 have; 10^8 is the rows",
    ),
    ("Huawei's L2", "1e-4 in Table 5, .005 in section 5.2.4", "not decided; fig16 tries both"),
    (
        "Robustness",
        "a deviation of AUC of .0085",
        "percentage points, 8.5e-5: otherwise it would swallow every gap of Table 6 (`seeds`)",
    ),
    (
        "Section 5.2.1",
        "KFM and NIFM are better than FFM and AFM on all sets",
        "not by Table 6: NIFM is below FFM on Avazu, both below AFM on iPinYou, KFM below FFM on Huawei",
    ),
    ("Abstract", "better on AUC and log loss throughout", "KPNN's log loss on iPinYou is above AFM's"),
    (
        "Table 9",
        "the best over sizes",
        "in two cells worse than Table 6, which is among the sizes (`table9` checks ours)",
    ),
    ("Section 3.1.2", "GENDER = 2, CITY = 7", "the example of Table 1 has 7 weekdays and 1000 cities"),
    ("Section 3.2.2", "indices of the parity example", "they do not follow the rows of Table 1"),
    ("Section 5.1", "the Criteo challenge of 2013; a month of logs", "2014; 24 days"),
    ("Equation of PIN", "sums over j not equal to i", "i < j: the count of Table 10 has one sub-network for a pair"),
    (
        "Adaptive vectors",
        "min(c log N, K), its base and rounding open",
        "the natural logarithm, rounded up, at least 1: that fits the example",
    ),
    ("Norms, L2", "formulas without epsilon and without a coefficient", "1e-5; `train.l2` and its relatives"),
    (
        "Table 8",
        "no word on what the test's pairs are",
        "log losses on blocks of test rows, one-sided, for each set and pair of models",
    ),
    ("Figure 20", "rows, noise, threshold and optimiser left open", "as in the docstring of fig20"),
)
BESIDE_THE_CODE = (
    (
        "Adam's epsilon",
        "analysed beside the corrected root; the code's optimiser has it beside the uncorrected one",
        "`train.eps_mode` textbook or hat; in the second g* is 31.6 epsilon at every step (fig8)",
    ),
    (
        "Sparse update",
        "recommended in section 4.3.2; the code's Adam moves every row at every step",
        "`train.sparse_mode`: paper (the default), lazy, dense",
    ),
    ("Selection", "on test rows: no validation part was split off", "on validation rows; test is looked at once"),
    (
        "L2",
        "summed over a batch whose loss is averaged, so that its value depends on the batch size",
        "a mean by default; `train.l2_reduction = sum` for the paper's numbers",
    ),
    ("Decay of the learning rate", "a setting that was never applied", "constant by default"),
    ("Dropout", "the probability of dropping in the paper, of keeping in the code", "that of dropping"),
    ("PIN", "the code computes a wide part and never adds it; Table 10 has none", "none"),
    (
        "CCPM",
        "no pooling in the code; Table 10 fits one convolution with pooling over all places",
        "that; k-max pooling is an option",
    ),
    ("FFM in Table 10", "40 million: a vector for each field; the text and the code have n - 1", "n - 1: 39 million"),
    (
        "Fused layer norm",
        "one gain for all pairs in the formula, one for each in the runs",
        "the formula's; `fused-per-pair` is the other",
    ),
    ("Layer norm of products", "in the text; the code cannot express it", "`model.product_norm`, on by default"),
    ("Matrix kernels", "their start cannot be run in the last code", "the identity, so that KFM starts as FM"),
    ("Sets", "averaged in the paper; summed and scaled by a root in the code", "averaged"),
    ("AFM's temperature", "which way it acts is not said", "it divides; the paper's most plausibly multiplies"),
    (
        "AFM's sum",
        "in the paper's equation the products' places count alike; in its authors' code a trained vector weighs them",
        "trained, from ones, in every study here; `model.project = false` is the equation's",
    ),
)
