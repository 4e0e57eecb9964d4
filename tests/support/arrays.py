"""Arrays as bytes, right and wrong."""


def npy(header_shape: str, payload: bytes = b"\0" * 20, descr: str = "<f4") -> bytes:
    """Write an .npy file by hand, with whatever shape it claims."""
    head = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {header_shape}, }}"
    head = head.ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head.encode() + payload
