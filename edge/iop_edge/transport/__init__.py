"""Where nodes dial in: the listener, who may come in, and one object per link."""
