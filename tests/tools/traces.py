"""Two small traces, as their publishers write them."""

MOONCAKE = """\
{"timestamp": 0, "input_length": 1100, "output_length": 20, "hash_ids": [7, 8, 9]}
{"timestamp": 5, "input_length": 1030, "output_length": 1, "hash_ids": [7, 8, 10]}
"""
AZURE = """\
TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,4808,10
2023-11-16 18:17:04.0319600,3180,8
"""
