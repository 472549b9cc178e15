# potluck: build, test, install.  `make help` lists the targets; every mode builds in build/<mode>.
#
#   MODE=release|debug|asan|ubsan|tsan|coverage|fuzz   CC=gcc|clang   CUDA=auto|0|1   WERROR=1   V=1
#
# Each folder is a static archive; an archive may use only those to its left in LAYERS (make check-layers).

MODE    ?= release
CC      := $(if $(filter default,$(origin CC)),$(if $(filter tsan fuzz,$(MODE)),clang,gcc),$(CC))
CUDA    ?= auto
PREFIX  ?= /usr/local
V       ?= 0
Q       := $(if $(filter 1,$(V)),,@)
B       := build/$(MODE)$(if $(filter tsan fuzz,$(MODE)),,$(if $(filter clang%,$(CC)),-clang))
VERSION := $(shell cat VERSION 2>/dev/null || echo 0.0.0)
FUZZ_SECONDS ?= 10

.DEFAULT_GOAL := all
.DELETE_ON_ERROR:
# All cores unless told otherwise; a make below another shares that one's jobs.
JOBS := $(if $(filter 0,$(MAKELEVEL)),$(if $(filter -j%,$(MAKEFLAGS)),,-j$(shell nproc)))
MAKEFLAGS += $(JOBS) --no-print-directory
LAYERS := common kernels placement proto model worker coordinator cli

# ---- packages --------------------------------------------------------------------------------------------------
# Debian 12 has no pkg-config file for UCX; MPI is asked through its wrapper.
PKGS       := jansson libxxhash hwloc inih libprotobuf-c liburing
PKG_CFLAGS := $(shell pkg-config --cflags $(PKGS) 2>/dev/null)
PKG_LIBS   := $(shell pkg-config --libs $(PKGS) 2>/dev/null)
MPI_CFLAGS := $(shell mpicc --showme:compile 2>/dev/null)
MPI_LIBS   := $(shell mpicc --showme:link 2>/dev/null)
# These install what is missing first and start make again; or they compile nothing.
SELF_SUFFICIENT := test demo help deps clean uninstall format format-check check-layers
ifeq ($(and $(PKG_LIBS),$(MPI_LIBS)),)
ifneq ($(filter-out $(SELF_SUFFICIENT),$(or $(MAKECMDGOALS),all)),)
$(error packages are missing: `make deps` installs them (deploy/install-deps.sh --check lists them))
endif
endif

# ---- flags -----------------------------------------------------------------------------------------------------
WARN := -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion -Wstrict-prototypes -Wmissing-prototypes \
        -Wvla -Wpointer-arith -Wwrite-strings -Wundef -Wformat=2 $(if $(WERROR),-Werror)
# One answer on every host: no contraction, no fast math, no native code (docs/numerics.md).
NUMERIC := -ffp-contract=off -fno-fast-math

OPT_release  := -O2 -g
OPT_debug    := -O0 -g3
OPT_asan     := -O1 -g -fsanitize=address -fno-omit-frame-pointer
OPT_ubsan    := -O1 -g -fsanitize=undefined,float-cast-overflow -fno-sanitize-recover=all
OPT_tsan     := -O1 -g -fsanitize=thread
OPT_coverage := -O0 -g --coverage
OPT_fuzz     := -O1 -g -fsanitize=address,fuzzer-no-link -fno-omit-frame-pointer
ifeq ($(OPT_$(MODE)),)
$(error MODE=$(MODE) is unknown: release, debug, asan, ubsan, tsan, coverage, fuzz)
endif

CFLAGS_ALL  := -std=gnu11 -D_GNU_SOURCE= $(OPT_$(MODE)) $(WARN) $(NUMERIC) -fopenmp -pthread -MMD -MP -I. -I$(B)/gen \
               -DPOT_VERSION='"$(VERSION)"' $(PKG_CFLAGS) $(CFLAGS)
LDFLAGS_ALL := $(OPT_$(MODE)) -fopenmp -pthread -Wl,--as-needed $(LDFLAGS)
LIBS        := $(PKG_LIBS) -lucp -lucs $(MPI_LIBS) -lm

# CUDA kernels are compiled when nvcc is there; CUDA=1 insists on it.  They depend neither on MODE nor on CC and take some
# minutes, so all modes share build/cuda.  Cards older than 7.5 need CUDA 12 and a shorter list.
CUDA_ARCHS ?= 75 80 86 89 90 100 120
NVCC := $(if $(filter 0,$(CUDA)),,$(shell command -v nvcc || ls /usr/local/cuda/bin/nvcc 2>/dev/null))
ifeq ($(filter auto 0 1,$(CUDA)),)
$(error CUDA=$(CUDA) is unknown: auto, 0, 1)
endif
ifeq ($(CUDA)$(NVCC),1)
$(error CUDA=1, but nvcc is neither in PATH nor in /usr/local/cuda/bin: install the CUDA toolkit or use CUDA=0)
endif
CU_SOURCES := $(wildcard kernels/cuda/*.cu)
CU_OBJS    := $(if $(NVCC),$(CU_SOURCES:%.cu=build/cuda/%.o))
CU_FLAGS   := -std=c++17 -O2 -fmad=false -DPOT_HAVE_CUDA -I. -Xcompiler -Wall,-Wextra,-fno-exceptions
CU_CODE    := $(foreach a,$(CUDA_ARCHS),-gencode arch=compute_$(a),code=sm_$(a)) \
              -gencode arch=compute_$(lastword $(CUDA_ARCHS)),code=compute_$(lastword $(CUDA_ARCHS))
ifneq ($(CU_OBJS),)
CFLAGS_ALL += -DPOT_HAVE_CUDA
LIBS       += -L$(dir $(realpath $(NVCC)))../lib64 -lcudart_static -lrt -ldl -lstdc++
endif

# ---- objects and archives --------------------------------------------------------------------------------------
# Kernels of other architectures are left out.
FOREIGN := $(patsubst %,kernels/kernels_%.c,$(if $(filter x86_64%,$(shell $(CC) -dumpmachine)),neon,avx2 avxvnni avx512 amx))
objs = $(patsubst %.c,$(B)/%.o,$(filter-out $(FOREIGN),$(wildcard $(1)/*.c))) \
       $(if $(filter proto,$(1)),$(B)/gen/proto/control.pb-c.o) $(if $(filter kernels,$(1)),$(CU_OBJS))
$(foreach l,$(LAYERS),$(eval OBJ_$(l) := $(call objs,$(l))))
ARCHIVES := $(foreach l,$(filter-out cli,$(LAYERS)),$(B)/lib$(l).a)

# $(call stamp,FILE,TEXT): a file that changes only when its text does, so that what depends on it is built again when
# flags change or a source file is added or removed.
stamp = $(if $(filter-out x$(strip $(2))x,x$(strip $(file <$(1)))x),$(shell mkdir -p $(dir $(1)))$(file >$(1),$(strip $(2))))
empty :=
space := $(empty) $(empty)
squash = $(subst $(space),_,$(strip $(1)))
ifneq ($(filter-out help clean test demo deps,$(or $(MAKECMDGOALS),all)),)
$(call stamp,$(B)/flags.stamp,$(call squash,$(CC) $(CFLAGS_ALL) $(LDFLAGS_ALL) $(LIBS)))
$(foreach l,$(LAYERS),$(call stamp,$(B)/lib$(l).stamp,$(call squash,$(OBJ_$(l)))))
$(if $(CU_OBJS),$(call stamp,build/cuda/flags.stamp,$(call squash,$(NVCC) $(CU_FLAGS) $(CU_CODE))))
endif
$(B)/%.stamp build/cuda/%.stamp: ;

# One instruction set a file: the suffix gives the flags.
# gcc would first make all products of an unrolled loop and add them afterwards, for which there are no registers.
KERNEL_OPT  := $(if $(filter release,$(MODE)),-O3,-O1) $(if $(shell $(CC) --version | grep -i clang),,-fno-tree-ter -fno-tree-reassoc)
ISA_avx2    := $(KERNEL_OPT) -mavx2 -mfma -mf16c
# Sanitizers make these files take minutes and see what they see in the avx2 table, which has the same body.
PLAIN       := $(if $(filter release debug,$(MODE)),,-fno-sanitize=all)
ISA_avxvnni := $(ISA_avx2) -mavxvnni $(PLAIN)
ISA_avx512  := $(ISA_avx2) $(PLAIN) -mavx512f -mavx512bw -mavx512vl -mavx512vnni
ISA_amx     := $(ISA_avx512) -mamx-tile -mamx-int8
ISA_neon    := $(KERNEL_OPT) -march=armv8.2-a+dotprod
$(B)/kernels/kernels_%.o: ISA = $(ISA_$(*:kernels/kernels_%=%))
ISA_generic := $(KERNEL_OPT)
# Packing a model is made of these loops.  At -O2 gcc makes vectors of few of them, and of none with a choice in it while it must count
# floating-point exceptions; values do not depend on that.
$(B)/kernels/pack.o $(B)/kernels/quantize.o $(B)/kernels/stored.o $(B)/kernels/unpack.o: ISA := \
    $(if $(filter release,$(MODE)),-O3) -fno-trapping-math
$(B)/proto/bootstrap_mpi.o $(B)/cli/cmd_about.o $(B)/cli/doctor_network.o: ISA := $(MPI_CFLAGS)

# Generated headers must exist before their users compile; after that the .d files know.
$(foreach l,proto model worker coordinator cli,$(OBJ_$(l))): | $(B)/gen/proto/control.pb-c.h

$(B)/%.o: %.c $(B)/flags.stamp
	@mkdir -p $(@D)
	@$(if $(filter 0,$(V)),echo "  CC   $<")
	$(Q)$(CC) $(CFLAGS_ALL) $(ISA) -c $< -o $@

build/cuda/%.o: %.cu build/cuda/flags.stamp
	@mkdir -p $(@D)
	@$(if $(filter 0,$(V)),echo "  NVCC $<")
	$(Q)$(NVCC) $(CU_FLAGS) $(CU_CODE) -MMD -MP -c $< -o $@

$(B)/gen/proto/control.pb-c.c $(B)/gen/proto/control.pb-c.h &: proto/control.proto
	@mkdir -p $(@D)
	@$(if $(filter 0,$(V)),echo "  PROTOC $<")
	$(Q)protoc-c --c_out=$(B)/gen $<

$(B)/gen/%.o: $(B)/gen/%.c $(B)/flags.stamp
	@$(if $(filter 0,$(V)),echo "  CC   $<")
	$(Q)$(CC) $(filter-out $(WARN),$(CFLAGS_ALL)) -c $< -o $@

define archive
$(B)/lib$(1).a: $$(OBJ_$(1)) $(B)/lib$(1).stamp
	@mkdir -p $$(@D)
	$$(Q)rm -f $$@ && ar rcs $$@ $$(OBJ_$(1))
endef
$(foreach l,$(LAYERS),$(eval $(call archive,$(l))))

link = $(CC) $(LDFLAGS_ALL) $(filter %.o,$^) -Wl,--start-group $(filter %.a,$^) -Wl,--end-group $(1) $(LIBS) -o $@
$(B)/potluck: $(OBJ_cli) $(ARCHIVES) $(B)/libcli.stamp
	@$(if $(filter 0,$(V)),echo "  LINK $@")
	$(Q)$(call link)

# ---- test programs: tests/test_<name>.c with cmocka, tests/fuzz/fuzz_<name>.c with its corpus ---------------------
# A test links the layers that its includes name and all to their left, so it builds while later layers do not.
TESTS := $(patsubst tests/%.c,%,$(wildcard tests/test_*.c))
TEST_TOOLS := make_tiny_model compare_tensors # programs that the scripts use
FUZZ  := $(patsubst tests/fuzz/%.c,%,$(wildcard tests/fuzz/fuzz_*.c))
# What it includes from tests/ (rig.h, compare.h, ...) is linked too.
support = $(addprefix tests/,$(sort $(shell sed -n 's|^\#include "tests/\([a-z_]*\)\.h".*|\1|p' $(1))))
layers_in = $(shell sed -n 's|^\#include "\([a-z]*\)/.*|\1|p' $(1) $(wildcard $(foreach s,$(call support,$(1)),$(s).c $(s).h)))
upto = $(if $(filter $(firstword $(2)),$(1)),$(2),$(if $(2),$(call upto,$(1),$(wordlist 2,99,$(2)))))
reverse = $(if $(1),$(call reverse,$(wordlist 2,99,$(1))) $(firstword $(1)))
RIGHT_FIRST := $(call reverse,$(LAYERS))
needs = $(foreach l,$(call upto,$(call layers_in,$(1)),$(RIGHT_FIRST)),$(B)/lib$(l).a)
support_objs = $(patsubst %.c,$(B)/%.o,$(wildcard $(addsuffix .c,$(call support,$(1)))))
generated = $(if $(filter %libproto.a,$(call needs,$(1))),$(B)/gen/proto/control.pb-c.h)

define test_program
$(B)/tests/$(1).o $(call support_objs,tests/$(1).c): | $(call generated,tests/$(1).c)
$(B)/tests/$(1): $(B)/tests/$(1).o $(call support_objs,tests/$(1).c) $$(or $$(TEST_ARCHIVES_$(1:test_%=%)),$(call needs,tests/$(1).c))
	@$$(if $$(filter 0,$$(V)),echo "  LINK $$@")
	$$(Q)$$(call link,-lcmocka)
endef
define fuzz_program
$(B)/tests/fuzz/$(1).o: | $(call generated,tests/fuzz/$(1).c)
$(B)/tests/fuzz/$(1): $(B)/tests/fuzz/$(1).o $(if $(filter fuzz,$(MODE)),,$(B)/tests/fuzz/replay.o) $(call needs,tests/fuzz/$(1).c)
	@$$(if $$(filter 0,$$(V)),echo "  LINK $$@")
	$$(Q)$$(call link,$(if $(filter fuzz,$(MODE)),-fsanitize=fuzzer))
endef
ifneq ($(filter-out $(SELF_SUFFICIENT),$(or $(MAKECMDGOALS),all)),)
$(foreach t,$(TESTS) $(TEST_TOOLS),$(eval $(call test_program,$(t))))
$(foreach f,$(FUZZ),$(eval $(call fuzz_program,$(f))))
endif
# test_cuda runs kernels/cuda without a GPU: the same sources, compiled for the host against tests/cuda_shim.
CXX       := $(if $(filter default,$(origin CXX)),$(patsubst gcc%,g++%,$(patsubst clang%,clang++%,$(CC))),$(CXX))
CXX_FLAGS := -std=gnu++17 $(OPT_$(MODE)) -Wall -Wextra -Wshadow -Wno-unknown-pragmas -Wno-pass-failed $(if $(WERROR),-Werror) \
             $(NUMERIC) -MMD -MP -DPOT_HAVE_CUDA -I. -Itests/cuda_shim
SHIM_OBJS := $(patsubst %.cu,$(B)/shim/%.o,$(CU_SOURCES)) $(patsubst %.cpp,$(B)/shim/%.o,$(wildcard tests/cuda_shim/*.cpp))
$(B)/shim/%.o: %.cu $(B)/flags.stamp
	@mkdir -p $(@D)
	@$(if $(filter 0,$(V)),echo "  CXX  $<")
	$(Q)$(CXX) $(CXX_FLAGS) -x c++ -c $< -o $@
$(B)/shim/%.o: %.cpp $(B)/flags.stamp
	@mkdir -p $(@D)
	@$(if $(filter 0,$(V)),echo "  CXX  $<")
	$(Q)$(CXX) $(CXX_FLAGS) -c $< -o $@
$(B)/tests/test_cuda.o: ISA := -DPOT_HAVE_CUDA
$(B)/tests/test_cuda: $(SHIM_OBJS)
$(B)/tests/test_cuda: LIBS += -lstdc++

# test_vram: a whole cluster whose workers keep experts on that GPU.
$(B)/shim/worker/device.o: worker/device.c $(B)/flags.stamp
	@mkdir -p $(@D)
	@$(if $(filter 0,$(V)),echo "  CC   $<")
	$(Q)$(CC) $(CFLAGS_ALL) -DPOT_HAVE_CUDA -c $< -o $@
$(B)/tests/test_vram: $(SHIM_OBJS) $(B)/shim/worker/device.o
$(B)/tests/test_vram: LIBS += -lstdc++

# Measuring programs, bench/bench_<name>.c: built like tests, run by hand.
BENCHES := $(filter-out $(if $(CU_OBJS),,bench_cuda),$(patsubst bench/%.c,%,$(wildcard bench/bench_*.c)))
define bench_program
$(B)/bench/$(1).o: | $(call generated,bench/$(1).c)
$(B)/bench/$(1): $(B)/bench/$(1).o $(call needs,bench/$(1).c)
	@$$(if $$(filter 0,$$(V)),echo "  LINK $$@")
	$$(Q)$$(call link)
endef
ifneq ($(filter-out $(SELF_SUFFICIENT),$(or $(MAKECMDGOALS),all)),)
$(foreach b,$(BENCHES),$(eval $(call bench_program,$(b))))
endif
# The exactness tests once more with every table of the architecture, the ones that this CPU lacks emulated (tests/emulated).
EMULATED := $(if $(filter release,$(MODE)),$(if $(filter x86_64%,$(shell $(CC) -dumpmachine)),exact contract))
EMULATED_OBJS := $(patsubst %,$(B)/tests/emulated/kernels_%.o,avxvnni avx512 amx) $(B)/tests/emulated/cpu.o
$(B)/tests/emulated/kernels_%.o: ISA := $(ISA_avx2) -O1 -Itests/emulated -Wno-psabi -Wno-pedantic
$(B)/tests/emulated/kernels_%.o: kernels/kernels_%.c $(B)/flags.stamp
	@mkdir -p $(@D)
	@$(if $(filter 0,$(V)),echo "  CC   $< (emulated)")
	$(Q)$(CC) $(CFLAGS_ALL) $(ISA) -c $< -o $@
define emulated_program
$(B)/tests/test_$(1)_emulated: $(B)/tests/test_$(1).o $(call support_objs,tests/test_$(1).c) $(EMULATED_OBJS) $(call needs,tests/test_$(1).c)
	@$$(if $$(filter 0,$$(V)),echo "  LINK $$@")
	$$(Q)$$(call link,-lcmocka)
endef
ifneq ($(filter-out $(SELF_SUFFICIENT),$(or $(MAKECMDGOALS),all)),)
$(foreach t,$(EMULATED),$(eval $(call emulated_program,$(t))))
endif
TEST_PROGRAMS := $(EMULATED:%=$(B)/tests/test_%_emulated) $(TESTS:%=$(B)/tests/%) $(FUZZ:%=$(B)/tests/fuzz/%)
TEST_SCRIPTS  := $(sort $(wildcard tests/cluster/*.sh tests/cross/*.sh))
RUN := MODE=$(MODE) BUILD=$(B) POTLUCK=$(B)/potluck tests/run

# ---- targets ---------------------------------------------------------------------------------------------------
.PHONY: all help deps test tests unit bench demo debug asan ubsan tsan coverage golden fuzz-smoke fuzz-run check check-layers \
        cuda-check check-docs lint format format-check install uninstall clean
all: $(B)/potluck ## build the program, build/potluck
	@ln -sfn $(patsubst build/%,%,$(B))/potluck build/potluck

help: ## list the targets
	@sed -n 's/^\([a-z -]*\):[^#]*## \(.*\)/  make \1|\2/p' $(firstword $(MAKEFILE_LIST)) | column -t -s '|'
	@echo '  variables: MODE=release|debug|asan|ubsan|tsan|coverage CC=gcc|clang CUDA=auto|0|1 WERROR=1 V=1 PREFIX= DESTDIR='

deps: ## install the packages that the build needs (Debian, Ubuntu)
	@deploy/install-deps.sh

test: deps ## build and run every test, after installing what is missing
	@$(MAKE) tests

tests: $(TEST_PROGRAMS) $(TEST_TOOLS:%=$(B)/tests/%) all
	@$(RUN) $(TEST_PROGRAMS) $(TEST_SCRIPTS)

unit: $(TEST_PROGRAMS) $(B)/potluck ## run the test programs, without the mpirun scripts
	@$(RUN) $(TEST_PROGRAMS)

bench: $(BENCHES:%=$(B)/bench/%) all ## build the measuring programs, build/release/bench/bench_*, and measure the kernels quickly
	@$(B)/potluck bench kernels --quick

demo: deps ## run the demo model on a coordinator and three workers
	@$(MAKE) all
	@demo/run.sh

debug: ## build without optimisation, in build/debug
	@$(MAKE) MODE=debug build/debug/potluck

asan ubsan tsan: ## run the test programs under a sanitizer
	@$(MAKE) MODE=$@ unit

coverage: ## run the test programs and print which lines they reach
	@$(MAKE) MODE=coverage unit
	@gcovr --root . --exclude 'tests/' --exclude 'build/' --print-summary build/coverage | tail -40

golden: $(TEST_PROGRAMS) $(B)/potluck ## renew the golden files and docs/options.md; look at the diff
	@GOLDEN=renew $(RUN) $(TEST_PROGRAMS)

fuzz-smoke: ## fuzz every parser for FUZZ_SECONDS, from its corpus
	@$(MAKE) MODE=fuzz fuzz-run

fuzz-run: $(FUZZ:%=build/fuzz/tests/fuzz/%)
	@FUZZ_SECONDS=$(FUZZ_SECONDS) tests/fuzz/smoke $(FUZZ:%=build/fuzz/tests/fuzz/%)

cuda-check: ## compile the CUDA kernels for each architecture; print registers, fail on spills
	@NVCC='$(NVCC)' tests/cuda_check $(CUDA_ARCHS)

check: check-layers check-docs format-check lint ## everything that is checked without running the program

check-layers: ## an include points only to the left in the layer order
	@tests/check-layers

check-docs: $(B)/tests/test_options ## docs/options.md and the golden help are in step with the table
	@$(RUN) $(B)/tests/test_options

lint: ## clang-tidy on changed files, cppcheck, shellcheck, codespell
	@CFLAGS='-std=gnu11 -D_GNU_SOURCE= -fopenmp -I. -I$(B)/gen $(PKG_CFLAGS) $(MPI_CFLAGS)' tests/lint

SOURCES = $(wildcard $(foreach d,$(LAYERS) bench tests tests/fuzz,$(d)/*.c $(d)/*.h))
format: ## format the sources with clang-format
	@clang-format -i $(SOURCES)

format-check: ## fail when clang-format would change a file
	@clang-format --dry-run --Werror $(SOURCES)

DEST = $(DESTDIR)$(PREFIX)
install: $(B)/potluck ## install below PREFIX (and DESTDIR)
	install -d $(DEST)/bin $(DEST)/share/potluck/demo $(DEST)/share/potluck/deploy $(DEST)/share/doc/potluck
	install -m 755 $(B)/potluck deploy/potluck-mpirun $(DEST)/bin
	install -m 755 $(wildcard deploy/*.sh) $(DEST)/share/potluck/deploy
	install -m 644 $(wildcard demo/*.json demo/*.safetensors demo/*.txt demo/*.md demo/*.jinja) $(DEST)/share/potluck/demo
	install -m 644 $(wildcard docs/*.md README.md CHANGELOG.md LICENSE) $(DEST)/share/doc/potluck

uninstall: ## remove what `make install` with the same PREFIX put there
	rm -f $(DEST)/bin/potluck $(DEST)/bin/potluck-mpirun
	rm -rf $(DEST)/share/potluck $(DEST)/share/doc/potluck

clean: ## remove build/
	rm -rf build

-include $(foreach l,$(LAYERS),$(OBJ_$(l):.o=.d)) $(SHIM_OBJS:.o=.d) $(B)/shim/worker/device.d $(wildcard $(B)/tests/*.d $(B)/tests/emulated/*.d $(B)/tests/fuzz/*.d $(B)/bench/*.d)
