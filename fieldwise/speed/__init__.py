"""How fast training is compared with what the machine can do, and whether fast is also right."""
