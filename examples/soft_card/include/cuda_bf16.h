// bfloat16 for kernels of the soft card.
#pragma once
#include <soft_card/float16.h>

typedef soft_card::Float16<soft_card::Bfloat16Format> __nv_bfloat16;
typedef soft_card::Float16x2<soft_card::Bfloat16Format> __nv_bfloat162;
typedef __nv_bfloat16 nv_bfloat16;
typedef __nv_bfloat162 nv_bfloat162;
