"""Crosses by half as many numbers and their masked copies (FCN, also called DCNv3)."""
