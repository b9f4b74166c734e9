"""Layers behind masks that the whole row gives (MaskNet)."""
