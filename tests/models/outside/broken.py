raise RuntimeError("my module")
