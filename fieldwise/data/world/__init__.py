"""The simulated click world: its kinds, its fields, its truth and its logs."""

from fieldwise.data.world.effects import PARTS
from fieldwise.data.world.kinds import KINDS
from fieldwise.data.world.logs import Log, write_log
from fieldwise.data.world.sequential import SequentialWorld
from fieldwise.data.world.world import World

__all__ = ["KINDS", "PARTS", "Log", "SequentialWorld", "World", "write_log"]
