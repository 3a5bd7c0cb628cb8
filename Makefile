# Each target is one `python -m tools …` call; the tools' own environment comes first.
PYTHON  ?= python3
DEVICE  ?= cpu
MODE    ?= precompiled
MODEL   ?=
TRACE   ?=
ARGS    ?=
SECONDS ?= 60
RELEASE ?=

TOOLS := build/tools/bin/python -m tools
READY := build/tools/ready

.PHONY: serve test apply build develop demo demo-pd demo-lmcache
.PHONY: bench-engine bench-host
.PHONY: bench-transfer bench-offload bench-kernel bench-placement kernel-report soak
.PHONY: fuzz replay export lock style help clean status push pop refresh
.PHONY: lint-series rebase matrix
.DEFAULT_GOAL := serve

serve: $(READY) ## all of the below where needed, then a server with the tagma backend
	$(TOOLS) serve $(if $(MODEL),--model "$(MODEL)") $(if $(ARGS),-- $(ARGS))

test: $(READY) ## every check, from a clean clone
	$(TOOLS) test

apply: $(READY) ## the patched tree under build/tree
	$(TOOLS) apply

build: $(READY) ## extension, wheel and virtual environment
	$(TOOLS) build --device $(DEVICE) --mode $(MODE)

develop: $(READY) ## the tree as an editable install
	$(TOOLS) build --editable

demo: $(READY) ## paged and tagma side by side on real requests
	$(TOOLS) demo

demo-pd: $(READY) ## a prefill and a decode server over NIXL, for both in turn
	$(TOOLS) demo-pd $(ARGS)

demo-lmcache: $(READY) ## LMCache behind a server, for both in turn
	$(TOOLS) demo-lmcache $(ARGS)

bench-engine: $(READY) ## the C++ engine beside an allocator on std::map
	$(TOOLS) bench-engine

bench-host: $(READY) ## the paged and the tagma manager on the scheduler's thread
	$(TOOLS) bench-host

bench-placement: $(READY) ## ranges per request and copies; TRACE=FILE replays one too
	$(TOOLS) bench-placement $(if $(TRACE),--trace "$(TRACE)") $(ARGS)

bench-transfer: $(READY) ## descriptors from a prefill to a decode pool; TRACE=FILE too
	$(TOOLS) bench-transfer $(if $(TRACE),--trace "$(TRACE)") $(ARGS)

bench-offload: $(READY) ## copies of CPU offloading; DRY=1 without a GPU; TRACE=FILE too
	$(TOOLS) bench-offload $(if $(DRY),--dry) $(if $(TRACE),--trace "$(TRACE)") $(ARGS)

soak: $(READY) ## 200,000 steps of the scheduler on a full pool
	$(TOOLS) soak

bench-kernel: $(READY) ## the write path's kernels and block copies beside upstream's, on a GPU
	$(TOOLS) bench-kernel

kernel-report: $(READY) ## what those kernels compile to; needs no GPU
	$(TOOLS) kernel-report

fuzz: $(READY) ## the C++ engine under libFuzzer for SECONDS
	$(TOOLS) fuzz --seconds $(SECONDS)

replay: $(READY) ## placement policies on small seeded workloads
	$(TOOLS) replay

export: $(READY) ## the tree's commits back to patches/
	$(TOOLS) export

rebase: $(READY) ## the series on another release, RELEASE=0.33.0
	$(TOOLS) rebase "$(RELEASE)"

matrix: $(READY) ## where the series lands, RELEASE="0.31.0 0.32.0 0.33.0"
	$(TOOLS) matrix $(RELEASE)

status: $(READY) ## where tree, patches and overlays stand to each other
	$(TOOLS) status

push: $(READY) ## all patches to the tree
	$(TOOLS) push --all

pop: $(READY) ## the last patch off the tree
	$(TOOLS) pop

refresh: $(READY) ## edits in the tree back to the last applied patch and overlays
	$(TOOLS) refresh

lint-series: $(READY) ## patches and overlays: headers, white space, names
	$(TOOLS) lint

lock: $(READY) ## the environments' lock files, from the package index
	$(TOOLS) lock

style: $(READY) ## ruff, mypy and clang-format
	$(TOOLS) style

help: ## this list
	@sed -nE 's/^([a-z-]+):.* ## (.*)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 26

# Without the tools nothing can tell whether the tree has work of the user's.
clean: ## all of build/ but the copies of dropped edits; not in the middle of a rebase
	@if [ -e $(READY) ]; then $(TOOLS) clean; \
	  elif [ -e build/rebase/journal.json ]; then \
	    echo "a rebase is under way, with your edits in build/rebase: end it by" \
	      "$(TOOLS) rebase --continue, or --abort, which keeps a copy" >&2; exit 1; \
	  elif [ -e build/tree ]; then mkdir -p build/dropped && \
	    mv build/tree "build/dropped/tree-$$(date +%s)"; fi
	@[ ! -d build ] || find build -mindepth 1 -maxdepth 1 ! -name dropped \
	  -exec rm -rf {} +

$(READY): upstream/tools.lock tools/bin/prepare
	@PYTHON="$(PYTHON)" tools/bin/prepare
