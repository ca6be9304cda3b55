// Half precision for kernels of the soft card.
#pragma once
#include <soft_card/float16.h>

typedef soft_card::Float16<soft_card::HalfFormat> __half;
typedef soft_card::Float16x2<soft_card::HalfFormat> __half2;
typedef __half half;
typedef __half2 half2;
