// As in NVIDIA's toolkit, the matrices of a warp are in the folder `crt`.
#pragma once
#include <crt/mma.h>
