"""The device ``sim:NAME``: training on meta tensors, its memory and time those of a named GPU."""
