"""The folder that is put on ``sys.path`` where no msgspec loads, so that ``import msgspec`` finds the one in it."""
