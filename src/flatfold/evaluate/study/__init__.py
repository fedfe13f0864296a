"""How sharply the loss bends on known and on unknown data: what is measured, resumed, written."""
