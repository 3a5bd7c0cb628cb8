"""The commands by what one wants to do, in the order in which help shows them."""

SECTIONS = {
    "build and serve": ("apply", "build", "serve", "clean"),
    "edit the series": (
        *("status", "series", "show", "goto", "push", "pop", "edit", "refresh", "new"),
        *("rename", "split", "fold", "drop", "export", "undo"),
        *("renumber", "merge-driver"),
    ),
    "follow upstream": (
        *("drift", "matrix", "rebase", "rehearse", "trial", "verify-source"),
        *("pin", "lock"),
    ),
    "measure": (
        *(
            "demo",
            "demo-pd",
            "demo-lmcache",
            "bench-engine",
            "bench-host",
            "bench-placement",
            "bench-transfer",
            "bench-offload",
            "bench-kernel",
        ),
        *("kernel-report", "replay"),
    ),
    "check": (
        *("test", "style", "lint", "suite", "check-engine", "audit", "fuzz", "soak"),
        *("mutants", "picture"),
    ),
}
