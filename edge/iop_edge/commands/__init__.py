"""The commands of `iop-edge`, one module each. They parse, call, and print; what they do lies elsewhere."""
