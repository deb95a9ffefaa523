"""The commands of `iop-node`, one module each. They parse, call and print; what they do lies elsewhere."""
