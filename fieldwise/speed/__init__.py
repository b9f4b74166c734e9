"""How fast training is beside what the machine can do, and whether fast is also right."""
