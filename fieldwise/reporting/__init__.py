"""What people see: the console, tables, plots, pages."""
