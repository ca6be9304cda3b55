//! Single kernels: votes, shuffles, barriers, atomics, sixteen-bit floats.

use super::card::Argument::{Float, Memory, Number};
use super::card::{Card, Launch, on_card};
use super::small_float::{BFLOAT16, Format, HALF};
use std::ptr;

pub const SOURCE: &str = include_str!("../../soft_card/kernels.cu");

fn run(card: &Card, name: &str, blocks: u32, threads: u32, arguments: &[super::card::Argument]) {
    let function = card.load_kernel(SOURCE, name);
    let stream = ptr::null_mut();
    let launch = Launch { function, blocks, threads, shared_bytes: 4096, stream, arguments };
    assert_eq!((card.launch(&launch), card.synchronize(stream)), (0, 0), "{name}");
}

#[test]
fn a_kernel_without_barriers_computes() {
    on_card("kernels::a_kernel_without_barriers_computes", &[], |card| {
        let values: Vec<f32> = (0..1000).map(|i| i as f32 - 3.5).collect();
        let (input, output) = (card.put(&values), card.put(&[7.0_f32; 1024]));
        run(card, "scale", 4, 256, &[Memory(&input), Memory(&output), Number(&1000), Float(&1.25)]);
        let expected: Vec<f32> = (0..1024).map(|i| if i < 1000 { values[i] * 1.25 } else { 7.0 }).collect();
        assert_eq!(card.get::<f32>(output, 1024), expected);
    });
}

#[test]
fn lanes_exchange_values_and_votes() {
    on_card("kernels::lanes_exchange_values_and_votes", &[], |card| {
        // The second warp votes differently, and its shuffles by index wrap at 32.
        let values: Vec<i32> = (0..64).map(|i| if i < 32 { (i * 7) % 32 } else { 2000 - i * 17 }).collect();
        let (input, output) = (card.put(&values), card.put(&[0_i32; 7 * 64]));
        run(card, "warp", 1, 64, &[Memory(&input), Memory(&output)]);
        let mut expected = Vec::new();
        for (lane, warp) in (0..64).map(|i| (i % 32, &values[i / 32 * 32..][..32])) {
            let own = warp[lane];
            let at = |other: i32| usize::try_from(other).ok().and_then(|other| warp.get(other)).copied().unwrap_or(own);
            let ballot = (0..32).fold(0_u32, |votes, other| votes | u32::from(warp[other] % 3 == 0) << other);
            let (any, all) = (warp.iter().any(|v| *v > 1000), warp.iter().all(|v| *v < 1000));
            let lane = lane as i32;
            expected.extend([at(own & 31), at(lane ^ 5), at(lane - 3), at(lane + 3)]);
            expected.extend([ballot as i32, i32::from(any), i32::from(all)]);
        }
        assert_eq!(card.get::<i32>(output, 7 * 64), expected);
    });
}

/// A lane that reads late still sees the value of one that has ended since; otherwise it would add its own twice.
#[test]
fn a_lane_that_has_ended_took_part_in_its_last_exchange() {
    on_card("kernels::a_lane_that_has_ended_took_part_in_its_last_exchange", &[], |card| {
        let values: Vec<f32> = (0..512).map(|i| ((i * 37) % 101) as f32).collect();
        let (input, output) = (card.put(&values), card.put(&[0_f32; 512]));
        run(card, "sum_of_warp", 2, 256, &[Memory(&input), Memory(&output)]);
        let expected: Vec<f32> = (0..512).map(|i| values[i / 32 * 32..][..32].iter().sum()).collect();
        assert_eq!(card.get::<f32>(output, 512), expected);
    });
}

/// Lanes that ended before the exchange do not hold it up, and reading one of them gives NaN.
#[test]
fn a_lane_that_ended_before_an_exchange_takes_no_part() {
    on_card("kernels::a_lane_that_ended_before_an_exchange_takes_no_part", &[], |card| {
        let values: Vec<f32> = (0..48).map(|i| i as f32 + 0.5).collect();
        let (input, output) = (card.put(&values), card.put(&[-1_f32; 48]));
        run(card, "next_lane", 1, 48, &[Memory(&input), Memory(&output), Number(&20)]);
        let results = card.get::<f32>(output, 48);
        for (i, result) in results.iter().enumerate() {
            // The second warp has 16 threads, which all stay; its last one reads a lane that never was.
            match i {
                19 | 47 => assert!(result.is_nan(), "{i}: {result}"),
                0..19 | 32..47 => assert_eq!(result.to_bits(), values[i + 1].to_bits(), "{i}"),
                _ => assert_eq!(result.to_bits(), (-1_f32).to_bits(), "{i}"),
            }
        }
    });
}

#[test]
fn threads_of_a_block_share_memory() {
    on_card("kernels::threads_of_a_block_share_memory", &[("POISON", "1")], |card| {
        let values: Vec<f32> = (0..768).map(|i| ((i * 31) % 97) as f32).collect();
        let (input, output) = (card.put(&values), card.put(&[0_f32; 6]));
        run(card, "sum_of_block", 3, 256, &[Memory(&input), Memory(&output)]);
        let expected: Vec<f32> = values.chunks(256).flat_map(|block| [block.iter().sum(), 8.0]).collect();
        assert_eq!(card.get::<f32>(output, 6), expected);
    });
}

/// Two streams count into the same memory at the same time.
#[test]
fn atomics_lose_nothing_between_streams() {
    on_card("kernels::atomics_lose_nothing_between_streams", &[], |card| {
        let values: Vec<i32> = (0..512).map(|i| (i * 13) % 61 - 20).collect();
        let (input, counts, sum) = (card.put(&values), card.put(&[0_i32; 5]), card.put(&[0_f32]));
        let function = card.load_kernel(SOURCE, "count");
        let streams = [card.create_stream(), card.create_stream()];
        let arguments = [Memory(&input), Memory(&counts), Memory(&sum), Number(&50)];
        for stream in streams {
            let launch = Launch { function, blocks: 4, threads: 128, shared_bytes: 0, stream, arguments: &arguments };
            assert_eq!(card.launch(&launch), 0);
        }
        assert_eq!(streams.map(|stream| card.synchronize(stream)), [0, 0]);
        let bits = values
            .iter()
            .fold(0, |bits, v| bits | if *v % 31 >= 0 { 1 << (v % 31) } else { 1_i32.wrapping_shl((v % 31) as u32) });
        let expected = [100 * values.iter().sum::<i32>(), 40, -20, bits, 2 * 2 * 512];
        assert_eq!(card.get::<i32>(counts, 5), expected);
        assert_eq!(card.get::<f32>(sum, 1), [0.5 * 100.0 * 512.0]);
    });
}

#[test]
fn sixteen_bit_floats_round_to_nearest_even() {
    on_card("kernels::sixteen_bit_floats_round_to_nearest_even", &[], |card| {
        let (a, b, wide) = samples();
        let (count, input) = (a.len(), [card.put(&a), card.put(&b), card.put(&wide)]);
        let output = card.put(&vec![0_u16; 16 * count]);
        let arguments = [Memory(&input[0]), Memory(&input[1]), Memory(&input[2]), Memory(&output)];
        run(card, "small_floats", count as u32 / 128, 128, &arguments);
        let results = card.get::<u16>(output, 16 * count);
        for (i, result) in results.chunks(16).enumerate() {
            check_small(HALF, [a[i], b[i]].map(f64::from), wide[i], &result[..8]);
            check_small(BFLOAT16, [a[i], b[i]].map(f64::from), wide[i], &result[8..]);
        }
    });
}

fn check_small(format: Format, [a, b]: [f64; 2], wide: f64, results: &[u16]) {
    let round = |value: f64| format.decode(format.encode(value));
    let (x, y) = (round(a), round(b));
    // Sums and products of two are exact in f64; the quotient's rounding there never decides.
    let exact = [a, x + y, x - y, x * y, x / y, wide, y.exp(), x * y + x];
    for (which, value) in exact.into_iter().enumerate() {
        let (found, expected) = (results[which], format.encode(value));
        let is_same = found == expected || value.is_nan() && format.decode(found).is_nan();
        // The exponential is that of f32, which may round to the neighbour.
        let is_near = which == 6 && found.abs_diff(expected) <= 1;
        assert!(is_same || is_near, "operation {which} of {a} and {b} ({wide}): {found:#x}, not {expected:#x}");
    }
}

/// Ties, neighbours of ties, subnormal and too great numbers, and many ordinary ones.
fn samples() -> (Vec<f32>, Vec<f32>, Vec<f64>) {
    let mut state = 12_345_u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        f64::from(state >> 8) / f64::from(1 << 24)
    };
    let special = [
        0.0,
        -0.0,
        1.0,
        2049.0,
        2051.0,
        65_504.0,
        65_519.9,
        65_520.0,
        1e6,
        6e-8,
        2.98e-8,
        2.9e-8,
        5.96e-8,
        257.0,
        259.0,
        3.4e38,
        1e-40,
        0.1,
        f64::INFINITY,
        f64::NAN,
    ];
    let mut columns = (Vec::new(), Vec::new(), Vec::new());
    for i in 0..1024 {
        let a = special.get(i).copied().unwrap_or_else(|| (next() - 0.5) * 2_f64.powi((next() * 40.0) as i32 - 25));
        let b = (next() - 0.5) * 8.0;
        // Just above a tie: rounding to f32 first would make it the tie.
        let tie = 1.0 + (2.0 * (next() * 60.0).floor() + 1.0) * 2_f64.powi(if i % 2 == 0 { -11 } else { -8 });
        columns.0.push(a as f32);
        columns.1.push(b as f32);
        columns.2.push(tie + [0.0, 1e-12, -1e-12][i % 3]);
    }
    columns
}

#[test]
fn barrier_objects_hold_warps_apart() {
    on_card("kernels::barrier_objects_hold_warps_apart", &[("CAPABILITY", "8.0")], |card| {
        let values: Vec<i32> = (0..64).map(|i| i * 10).collect();
        let (input, output) = (card.put(&values), card.put(&[0_i32; 32]));
        run(card, "barriers", 1, 64, &[Memory(&input), Memory(&output)]);
        let sum = |i: usize| (values[31 - i]).wrapping_add(values[i].saturating_add(2_147_483_600));
        assert_eq!(card.get::<i32>(output, 32), (0..32).map(sum).collect::<Vec<i32>>());
    });
}

/// Runs one warp whose lane `i` reads `10 * i`; returns these inputs, and the outputs.
fn run_warp(card: &Card, kernel: &str, outputs: usize) -> (Vec<i32>, Vec<i32>) {
    let values: Vec<i32> = (0..32).map(|i| i * 10).collect();
    let (input, output) = (card.put(&values), card.put(&vec![0_i32; outputs]));
    run(card, kernel, 1, 32, &[Memory(&input), Memory(&output)]);
    let written = card.get::<i32>(output, outputs);
    (values, written)
}

#[test]
fn lanes_of_a_warp_are_in_step() {
    on_card("kernels::lanes_of_a_warp_are_in_step", &[], |card| {
        let (values, written) = run_warp(card, "in_step", 32);
        let passed = |i: usize| values[((i + 1) % 32) ^ 31] + 1000;
        assert_eq!(written, (0..32).map(passed).collect::<Vec<i32>>());
    });
}

#[test]
fn lanes_that_take_no_part_in_a_branch_wait_behind_it() {
    on_card("kernels::lanes_that_take_no_part_in_a_branch_wait_behind_it", &[], |card| {
        let (values, written) = run_warp(card, "in_step_around_branches", 16);
        let sums: Vec<i32> = values[16..].iter().map(|value| 3 * value + 10_100).collect();
        assert_eq!(written, sums);
    });
}

#[test]
fn threads_that_wait_for_ever_are_a_launch_failure() {
    on_card("kernels::threads_that_wait_for_ever_are_a_launch_failure", &[], |card| {
        let output = card.put(&[0_i32; 64]);
        let (function, stream) = (card.load_kernel(SOURCE, "stuck"), ptr::null_mut());
        let arguments = [Memory(&output)];
        let launch = Launch { function, blocks: 1, threads: 64, shared_bytes: 64, stream, arguments: &arguments };
        assert_eq!((card.launch(&launch), card.synchronize(stream)), (0, 719));
    });
}

#[test]
fn a_missing_compiler_is_named_with_its_package() {
    on_card("kernels::a_missing_compiler_is_named_with_its_package", &[("CXX", "/nonexistent/g++")], |card| {
        let source = SOURCE.replace("scale", "never_compiled_before");
        let log = card.compile(&source).unwrap_err();
        assert!(log.contains("install the package g++"), "{log}");
    });
}

#[test]
fn the_log_of_a_kernel_that_does_not_compile_names_the_error() {
    on_card("kernels::the_log_of_a_kernel_that_does_not_compile_names_the_error", &[], |card| {
        let log = card.compile(&SOURCE.replace("in[i] * factor", "in[i] * nothing_like_that")).unwrap_err();
        assert!(log.contains("nothing_like_that"), "{log}");
    });
}
