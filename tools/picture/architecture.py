"""The two pictures of ARCHITECTURE.md: how a patch flows, and how a block flows."""

from tools.picture.flow import Arrow, Box, Flow, Kind

PATCH_FLOW = Flow(
    {
        "pin": Box(0, 0, "pin", ("upstream/pin.toml", "version and hashes"), Kind.TEXT),
        "overlays": Box(
            0,
            1,
            "overlays",
            ("csrc_tagma/  vllm_overlay/", "tests/vllm/"),
            Kind.TEXT,
        ),
        "series": Box(
            0, 2, "series", ("patches/series", "patches/0001-….patch …"), Kind.TEXT
        ),
        "source": Box(
            1, 0, "source", ("sdist, file or git remote", "tools/source"), Kind.UPSTREAM
        ),
        "tree": Box(
            1,
            1.5,
            "tree",
            ("build/tree: one commit for the", "import, the overlays, each patch"),
            Kind.MADE,
        ),
        "release": Box(
            0,
            3,
            "next release",
            ("its sdist and wheel,", "pinned by hash"),
            Kind.UPSTREAM,
        ),
        "wheel": Box(
            2,
            0.5,
            "prebuilt wheel",
            ("the other compiled", "members, by hash"),
            Kind.UPSTREAM,
        ),
        "build": Box(
            2,
            1.5,
            "build",
            ("vllm.tagma by CMake,", "wheel, build/venv"),
            Kind.MADE,
        ),
        "carried": Box(
            1,
            3,
            "carried series",
            ("three-way merge, a patch", "at a time; tools/carry"),
            Kind.MADE,
        ),
        "serve": Box(
            3, 1.5, "server", ("vllm serve …", "--kv-cache-backend tagma"), Kind.MADE
        ),
    },
    (
        Arrow("pin", "source", "names"),
        Arrow("source", "tree", "import"),
        Arrow("overlays", "tree", "lay"),
        Arrow("series", "tree", "apply", bend=-0.12),
        Arrow("tree", "series", "export", back=True, bend=-0.25),
        Arrow("tree", "build", "compile"),
        Arrow("wheel", "build", "members"),
        Arrow("build", "serve", "install"),
        Arrow("release", "carried", "rebase"),
        Arrow("tree", "carried", "each patch"),
        Arrow("carried", "series", "switch", back=True),
    ),
    {
        Kind.TEXT: "text in the repository",
        Kind.MADE: "made under build/",
        Kind.UPSTREAM: "fetched, by hash",
    },
)

BLOCK_FLOW = Flow(
    {
        "scheduler": Box(
            0, 0, "scheduler", ("asks for blocks,", "frees them"), Kind.UPSTREAM
        ),
        "manager": Box(
            1,
            0,
            "manager",
            ("TagmaKVCacheManager:", "upstream's contract over ranges"),
            Kind.CODE,
        ),
        "pool": Box(
            1,
            1,
            "block pool",
            ("upstream's BlockPool as", "views over the engine"),
            Kind.CODE,
        ),
        "engine": Box(
            2,
            0,
            "engine",
            ("vllm.tagma KVAllocator:", "extents, runs, references"),
            Kind.CODE,
        ),
        "index": Box(
            2,
            1,
            "prefix index",
            ("vllm.tagma PrefixIndex:", "hash to block"),
            Kind.CODE,
        ),
        "message": Box(
            0,
            1,
            "scheduler output",
            ("a request's new blocks", "as BlockRanges"),
            Kind.CODE,
        ),
        "worker": Box(
            0, 2, "worker", ("Model Runner V2,", "TagmaBlockTables"), Kind.CODE
        ),
        "table": Box(
            1,
            2,
            "range table",
            ("on the device, a row a request:", "starts, counts summed up"),
            Kind.CODE,
        ),
        "slots": Box(
            2,
            2,
            "slot mapping kernel",
            ("start + (position // block", "size - blocks before)"),
            Kind.CODE,
        ),
        "expand": Box(
            2,
            3,
            "expansion kernel",
            ("ranges to the block table", "of the read path"),
            Kind.CODE,
        ),
        "attention": Box(
            3,
            2.5,
            "attention",
            ("writes by slots, reads", "by block table"),
            Kind.UPSTREAM,
        ),
        "connector": Box(
            0,
            3,
            "connector",
            ("one descriptor for", "each run of blocks"),
            Kind.UPSTREAM,
        ),
    },
    (
        Arrow("scheduler", "manager", "allocate, free"),
        Arrow("manager", "engine", "extend, release"),
        Arrow("manager", "pool"),
        Arrow("pool", "engine"),
        Arrow("pool", "index", "find, insert"),
        Arrow("scheduler", "message", "each step"),
        Arrow("message", "worker", "pickled"),
        Arrow("worker", "table", "append"),
        Arrow("table", "slots"),
        Arrow("table", "expand"),
        Arrow("slots", "attention"),
        Arrow("expand", "attention"),
        Arrow("worker", "connector", "block ids"),
    ),
    {Kind.CODE: "tagma", Kind.UPSTREAM: "upstream, unchanged but for hooks"},
)

# By file name, below .github/images.
PICTURES = {"patch-flow.svg": PATCH_FLOW, "block-flow.svg": BLOCK_FLOW}
