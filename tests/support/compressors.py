"""Compressors of every kind."""

import pytest
from hypothesis import strategies as st

from fedapp.compression import make_compressor

QSGD8 = make_compressor("qsgd", levels=8)
UNIFORM4 = make_compressor("uniform", bits=4)
RANDK = make_compressor("randk", ratio=0.1)
COMPRESSORS = [
    make_compressor("none"),
    make_compressor("float16"),
    make_compressor("qsgd", levels=1),
    make_compressor("qsgd", levels=16),
    make_compressor("qsgd", levels=32767),
    make_compressor("qsgd", levels=5, norm="max"),
    make_compressor("qsgd", levels=3, bucket=7),
    make_compressor("qsgd", levels=127, norm="max", bucket=1000),
    make_compressor("uniform", bits=1),
    make_compressor("uniform", bits=2),
    make_compressor("uniform", bits=8),
    make_compressor("uniform", bits=16),
    make_compressor("uniform", bits=4, rounding="nearest"),
    make_compressor("uniform", bits=6, zero_point_noise=3),
    make_compressor("topk", ratio=0.1),
    make_compressor("topk", ratio=1.0),
    make_compressor("topk", ratio=0.3, values=QSGD8),
    make_compressor("topk", ratio=0.01, values=UNIFORM4),
    make_compressor("topk", ratio=0.5, values=make_compressor("float16")),
    RANDK,
    make_compressor("randk", ratio=1.0),
    make_compressor("randk", ratio=0.4, values=QSGD8),
    make_compressor("randk", ratio=0.2, values=make_compressor("uniform", bits=8)),
    make_compressor("topk", ratio=0.5, values=make_compressor("randk", ratio=0.5)),
    make_compressor("contextual"),
    make_compressor("contextual", step=0.05),
    make_compressor("contextual", nmse=0.1),
    make_compressor("contextual", max_bytes=100),
    make_compressor("dithered"),
    make_compressor("dithered", step=0.001),
    make_compressor("dithered", step=50.0),
    make_compressor("dithered", nmse=0.1),
    make_compressor("topk", ratio=0.2, values=make_compressor("dithered", step=0.5)),
    make_compressor("bfloat16"),
    make_compressor("natural"),
    make_compressor("sign"),
    make_compressor("topk", ratio=0.1, values="ternary"),
    make_compressor("ternary", ratio=0.3),
    make_compressor("lowrank"),
]

every_compressor = pytest.mark.parametrize("compressor", COMPRESSORS, ids=repr)
any_compressor = st.sampled_from(COMPRESSORS)
