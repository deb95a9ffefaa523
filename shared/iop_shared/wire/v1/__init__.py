"""Generated protobuf code. Only `iop_shared.codec` imports from here; `make proto` writes it."""
