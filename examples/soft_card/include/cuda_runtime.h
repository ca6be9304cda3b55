// CUDA C++ for g++: what the kernels that CubeCL generates need. Part of the soft card; not NVIDIA's header.
#pragma once
#include <stddef.h>
#include <soft_card/language.h>
#include <soft_card/place.h>
#include <soft_card/warp.h>
#include <soft_card/arithmetic.h>
#include <soft_card/atomics.h>
#include <soft_card/ptx.h>
#include <soft_card/entry.h>
