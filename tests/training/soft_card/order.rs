//! A kernel is one text, in whatever order CubeCL writes its parts.

#[expect(dead_code, reason = "only the order is tested here")]
#[path = "../../../examples/soft_card/rewrite.rs"]
mod rewrite;

use rewrite::order::in_order;

const VECTORS: [&str; 2] =
    ["struct __align__(8) float_2 {\nfloat i_0;\nfloat i_1;\n};", "struct __align__(4) half_2 {\n__half i_0;\n};"];
const FUNCTIONS: [&str; 2] = [
    "inline __device__ void\n__mma_m16n8k16_half_half_float(uint32& a) {\n  asm volatile(\"mma {%0}, {%1};\"\n : \"=r\"(a));\n    }",
    "inline __device__ void\n__ldmatrix_m8n8_half_4x(uint32& a) {\n  asm volatile(\"ldmatrix {%0};\"\n : \"=r\"(a));\n    }",
];

const LOCALS: [&str; 2] = ["uint32 l_mut_2;\n", "float_2 l_mut_14;\n"];

fn array(index: usize, bytes: usize, offset: usize) -> String {
    format!(
        "// Shared array size: {bytes}, {bytes} bytes\nfloat *shared_memory_{index} = reinterpret_cast<float*>(&dynamic_shared_mem[{offset}]);\n"
    )
}

fn value(index: usize, offset: usize) -> String {
    format!(
        "// Shared value size: 8 bytes\nbarrier &shared_memory_{index} = reinterpret_cast<barrier&>(dynamic_shared_mem[{offset}]);\n"
    )
}

/// Returns a kernel with types, functions and locals in this order.
fn kernel([types, functions, locals]: [[&str; 2]; 3], arrays: &[String]) -> String {
    let [types, functions, locals] = [types.join("\n"), functions.join("\n"), locals.concat()];
    let arrays = arrays.concat();
    format!("{types}\n\n{functions}\nextern \"C\" __global__ void k() {{\n{arrays}{locals}l_mut_2 = 0;\n}}\n")
}

#[test]
fn parts_in_another_order_are_the_same_text() {
    let one = [VECTORS, FUNCTIONS, LOCALS];
    let other = one.map(|[first, second]| [second, first]);
    // The accumulators of a product share the memory of one of its sides, or of the other.
    let text = in_order(&kernel(one, &[array(30, 640, 128), array(7, 128, 0), value(40, 768), array(41, 64, 0)]));
    let same = in_order(&kernel(other, &[value(40, 0), array(41, 64, 128), array(7, 128, 768), array(30, 640, 128)]));
    assert_eq!(text, same);
    for part in one.into_iter().flatten() {
        assert!(text.contains(part), "{part} is missing in {text}");
    }
    let placed = [array(7, 128, 0), array(30, 640, 1024), value(40, 2048), array(41, 64, 3072)].concat();
    assert!(text.contains(&placed), "{text}");
    // The control: another kernel is another text.
    assert_ne!(
        text,
        in_order(&kernel(one, &[array(30, 640, 128), array(7, 256, 0), value(40, 768), array(41, 64, 0)]))
    );
}

#[test]
fn arrays_without_room_for_each_stay_where_they_are() {
    let parts = [VECTORS, FUNCTIONS, LOCALS];
    let arrays = [array(7, 128 << 10, 0), array(3, 128 << 10, 0)];
    let text = in_order(&kernel(parts, &arrays));
    assert!(text.contains(&arrays.concat()), "{text}");
}
