"""Numbers that a whole row gives to scale features by (GDCN, MaskNet, FinalMLP, FiBiNET)."""
