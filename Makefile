# potluck: build, test, install.  `make help` lists the targets; every mode builds in build/<mode>.
#
#   MODE=release|debug|asan|ubsan|tsan|coverage   CC=gcc|clang   CUDA=auto|0|1   WERROR=1   V=1
#
# Each folder is a static archive; an archive may use only those to its left in LAYERS (make check-layers).

MODE    ?= release
CC      := $(if $(filter default,$(origin CC)),gcc,$(CC))
CUDA    ?= auto
PREFIX  ?= /usr/local
V       ?= 0
Q       := $(if $(filter 1,$(V)),,@)
B       := build/$(MODE)$(if $(filter clang%,$(CC)),-clang)
VERSION := $(shell cat VERSION 2>/dev/null || echo 0.0.0)

.DEFAULT_GOAL := all
LAYERS := common kernels placement proto model worker coordinator cli

# ---- flags -----------------------------------------------------------------------------------------------------
WARN := -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion -Wstrict-prototypes -Wmissing-prototypes \
        -Wvla -Wpointer-arith -Wwrite-strings -Wundef -Wformat=2 $(if $(WERROR),-Werror)
# One answer on every host: no contraction, no fast math, no native code (docs/numerics.md).
NUMERIC := -ffp-contract=off -fno-fast-math
PKGS := jansson libxxhash hwloc inih ucx libprotobuf-c
# pkg-config has no file for UCX and MPI in Debian 12; these are the plain names.
PKG_CFLAGS := $(shell pkg-config --cflags jansson libxxhash hwloc inih libprotobuf-c 2>/dev/null)
PKG_LIBS   := $(shell pkg-config --libs jansson libxxhash hwloc inih libprotobuf-c 2>/dev/null)
MPI_CFLAGS := $(shell mpicc --showme:compile 2>/dev/null)
MPI_LIBS   := $(shell mpicc --showme:link 2>/dev/null)

OPT_release  := -O2 -g
OPT_debug    := -O0 -g3
OPT_asan     := -O1 -g -fsanitize=address -fno-omit-frame-pointer
OPT_ubsan    := -O1 -g -fsanitize=undefined,float-cast-overflow -fno-sanitize-recover=all
OPT_tsan     := -O1 -g -fsanitize=thread
OPT_coverage := -O0 -g --coverage
ifeq ($(OPT_$(MODE)),)
$(error MODE=$(MODE) is unknown: release, debug, asan, ubsan, tsan, coverage)
endif

CFLAGS_ALL  := -std=gnu11 -D_GNU_SOURCE= $(OPT_$(MODE)) $(WARN) $(NUMERIC) -fopenmp -pthread -MMD -MP -I. -I$(B)/gen \
               -DPOT_VERSION='"$(VERSION)"' $(PKG_CFLAGS) $(CFLAGS)
LDFLAGS_ALL := $(OPT_$(MODE)) -fopenmp -pthread $(LDFLAGS)
LIBS        := $(PKG_LIBS) -lucp -lucs $(MPI_LIBS) -lm

# ---- objects ---------------------------------------------------------------------------------------------------
objs = $(patsubst %.c,$(B)/%.o,$(wildcard $(1)/*.c)) $(if $(filter proto,$(1)),$(B)/gen/proto/control.pb-c.o)
$(foreach l,$(LAYERS),$(eval OBJ_$(l) := $(call objs,$(l))))
ARCHIVES := $(foreach l,$(filter-out cli,$(LAYERS)),$(B)/lib$(l).a)
LINK := -Wl,--start-group $(ARCHIVES) -Wl,--end-group

# One instruction set a file: the suffix gives the flags.
$(B)/kernels/%_avx2.o: ISA := -O3 -mavx2 -mfma -mf16c
$(B)/kernels/kernels_generic.o: ISA := -O3
$(B)/proto/bootstrap_mpi.o $(B)/cli/cmd_about.o: ISA := $(MPI_CFLAGS)

# Generated headers must exist before their users compile; after that the .d files know.
$(foreach l,proto model worker coordinator cli,$(OBJ_$(l))): | $(B)/gen/proto/control.pb-c.h

$(B)/%.o: %.c
	@mkdir -p $(@D)
	@$(if $(filter 0,$(V)),echo "  CC   $<")
	$(Q)$(CC) $(CFLAGS_ALL) $(ISA) -c $< -o $@

$(B)/gen/proto/control.pb-c.c $(B)/gen/proto/control.pb-c.h &: proto/control.proto
	@mkdir -p $(@D)
	@$(if $(filter 0,$(V)),echo "  PROTOC $<")
	$(Q)protoc-c --c_out=$(B)/gen $<

$(B)/gen/%.o: $(B)/gen/%.c
	@$(if $(filter 0,$(V)),echo "  CC   $<")
	$(Q)$(CC) $(filter-out $(WARN),$(CFLAGS_ALL)) -c $< -o $@

define archive
$(B)/lib$(1).a: $$(OBJ_$(1))
	@mkdir -p $$(@D)
	$$(Q)rm -f $$@ && ar rcs $$@ $$^
endef
$(foreach l,$(LAYERS),$(eval $(call archive,$(l))))

$(B)/potluck: $(OBJ_cli) $(ARCHIVES)
	@$(if $(filter 0,$(V)),echo "  LINK $@")
	$(Q)$(CC) $(LDFLAGS_ALL) $(OBJ_cli) $(LINK) $(LIBS) -o $@

# ---- tests: tests/test_<name>.c, one cmocka program each -------------------------------------------------------
# The archives that a test needs (and with them all to their left); default: all.
LAYERS_OF_kernels := common kernels
TESTS := $(patsubst tests/test_%.c,%,$(wildcard tests/test_*.c))
$(B)/tests/test_%: $(B)/tests/test_%.o
	@$(if $(filter 0,$(V)),echo "  LINK $@")
	$(Q)$(MAKE) --no-print-directory -s $(or $(TEST_ARCHIVES_$*),$(ARCHIVES))
	$(Q)$(CC) $(LDFLAGS_ALL) $< -Wl,--start-group $(or $(TEST_ARCHIVES_$*),$(ARCHIVES)) -Wl,--end-group -lcmocka $(LIBS) -o $@

.PHONY: all
all: $(B)/potluck ## build the program
	@ln -sfn $(B)/potluck build/potluck 2>/dev/null || true

-include $(foreach l,$(LAYERS),$(OBJ_$(l):.o=.d)) $(wildcard $(B)/tests/*.d)
