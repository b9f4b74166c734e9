"""What is known about each kind of field, one file each; a new kind is a new file here. kind.py says what it holds."""

from importlib import import_module
from pkgutil import iter_modules

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
