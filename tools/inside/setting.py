"""How large everything is that `measure_host` times."""

BLOCK_SIZE = 16
POOL_TOKENS = 1 << 20
POOL_BLOCKS = POOL_TOKENS // BLOCK_SIZE + 1  # and the null block
MAX_TOKENS = 1 << 18
DECODING = 512  # requests
DECODE_PROMPT = 1024  # tokens
