//! Lines as programs print them, and their figures.

use super::{FORMS, Figure, Forms, KEPT, read_line, trace_memory};
use Figure::{Allocated, Free, Host, MaxAllocated, MaxReserved, Requested, Reserved, Unallocated, Used};
use proptest::prelude::*;
use std::fmt::Write as _;

type Expected = (Figure, f64, Option<f64>);

const PRINTED: [(&str, &[Expected]); 20] = [
    (
        "| 30%   61C    P2   220W / 350W |  12345MiB / 24576MiB |     98%      Default |",
        &[(Used, 12345.0, Some(24576.0))],
    ),
    ("2026/11/20 03:10:01.123, 0, 1024 MiB, 2048 MiB", &[(Used, 1024.0, Some(2048.0))]),
    (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 24.00 GiB of which 1.00 GiB is free. Including non-PyTorch memory, this process has 22.50 GiB memory in use. Of the allocated memory 21.50 GiB is allocated by PyTorch, and 256.00 MiB is reserved by PyTorch but unallocated.",
        &[
            (Requested, 2048.0, None),
            (Free, 1024.0, Some(24576.0)),
            (Used, 23040.0, None),
            (Allocated, 22016.0, None),
            (Unallocated, 256.0, None),
        ],
    ),
    (
        "RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 10.00 GiB total capacity; 9.00 GiB already allocated; 13.50 MiB free; 9.50 GiB reserved in total by PyTorch)",
        &[
            (Requested, 20.0, None),
            (Allocated, 9216.0, Some(10240.0)),
            (Free, 13.5, Some(10240.0)),
            (Reserved, 9728.0, None),
        ],
    ),
    (
        "[INFO] [utils.py:801:see_memory_usage] MA 3.2 GB         Max_MA 3.5 GB         CA 4.0 GB         Max_CA 4 GB ",
        &[
            (Allocated, 3276.8, None),
            (MaxAllocated, 3584.0, None),
            (Reserved, 4096.0, None),
            (MaxReserved, 4096.0, None),
        ],
    ),
    (
        "[INFO] [utils.py:809:see_memory_usage] CPU Virtual Memory:  used = 25.5 GB, percent = 10.1%",
        &[(Host, 26112.0, None)],
    ),
    (
        "[Rank 0] (after 2 iterations) memory (MB) | allocated: 100.5 | max allocated: 200.0 | reserved: 300.0 | max reserved: 400.0",
        &[(Allocated, 100.5, None), (MaxAllocated, 200.0, None), (Reserved, 300.0, None), (MaxReserved, 400.0, None)],
    ),
    ("torch.cuda.max_memory_allocated: 12.5 GiB", &[(MaxAllocated, 12800.0, None)]),
    ("torch.cuda.memory_allocated() = 1048576", &[(Allocated, 1.0, None)]),
    (
        "Epoch: [0]  [ 10/100]  eta: 0:01:00  loss: 0.31  time: 0.5  data: 0.1  max mem: 5120",
        &[(MaxAllocated, 5120.0, None)],
    ),
    ("step 4 {'bytes_in_use': 2097152, 'num_allocs': 3, 'bytes_limit': 4194304}", &[(Used, 2.0, Some(4.0))]),
    ("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 17179869184 bytes.", &[(Requested, 16384.0, None)]),
    ("Epoch 3 | Loss: 0.41 | Mem (GB): 20.00 | LR: 1e-4", &[(Used, 20480.0, None)]),
    ("loss 2.1 gpu_mem_gb=1.5", &[(Used, 1536.0, None)]),
    ("Memory [MiB]: 512", &[(Used, 512.0, None)]),
    ("CPU Mem (GB): 20.00", &[]),
    ("step 10 loss 2.1 VRAM 11.2/24.0 GB", &[(Used, 11468.8, Some(24576.0))]),
    ("GPU memory: 11.5 GB", &[(Used, 11776.0, None)]),
    (
        "Out of memory: Killed process 42 (python) total-vm:9kB, anon-rss:1048576kB, file-rss:0kB",
        &[(Host, 1024.0, None)],
    ),
    ("rss=2,048 MiB after epoch 3", &[(Host, 2048.0, None)]),
];

#[test]
fn forms_of_many_programs_are_read_in_one_unit() {
    for (line, expected) in PRINTED {
        let mut found: Vec<Expected> = read_line(line.as_bytes(), 1)
            .into_iter()
            .map(|reading| (reading.figure, reading.mib, reading.of_mib))
            .collect();
        let mut expected = expected.to_vec();
        let near = |a: f64, b: f64| (a - b).abs() < 0.01;
        found.sort_by_key(|(figure, ..)| *figure);
        expected.sort_by_key(|(figure, ..)| *figure);
        let same = found.len() == expected.len()
            && found
                .iter()
                .zip(&expected)
                .all(|(a, b)| a.0 == b.0 && near(a.1, b.1) && near(a.2.unwrap_or_default(), b.2.unwrap_or_default()));
        assert!(same, "{line}\n{found:?}\n{expected:?}");
    }
}

#[test]
fn lines_without_memory_have_no_figures() {
    let lines = [
        "step 100 loss 2.3102 grad_norm 1.71",
        "downloading model.safetensors: 45%| 1.20G/2.67G [00:31<00:38]",
        "gradient checkpointing reduces memory",
        "memory format: channels_last",
        "checkpoint 945 saved, 161 KiB",
        "GPU memory: unknown",
        "Swap usage: 3 GB",
    ];
    for line in lines {
        assert_eq!(read_line(line.as_bytes(), 1), [], "{line}");
    }
}

#[test]
fn time_and_device_are_read_from_the_line() {
    let cases = [
        ("2025-11-20 03:10:04,123 INFO VRAM 1/2 GB", Some("2025-11-20 03:10:04,123"), None),
        ("Nov 20 03:12:44 box kernel: rss: 12 kB", Some("Nov 20 03:12:44"), None),
        ("[ 1184.5] Killed process 4 anon-rss:12kB", Some("1184.5"), None),
        ("[rank3]: VRAM 1/2 GB", None, Some("rank 3")),
        ("\x1b[32m03:10:04\x1b[0m cuda:1 max_memory_allocated 12 MB", Some("03:10:04"), Some("gpu 1")),
    ];
    for (line, time, device) in cases {
        let reading = read_line(line.as_bytes(), 7).remove(0);
        assert_eq!((reading.time.as_deref(), reading.device.as_deref(), reading.line), (time, device, 7), "{line}");
    }
}

#[test]
fn a_line_with_a_figure_for_each_device_gives_all_of_them() {
    let line = "step 7 cuda:0 VRAM 11/24 GB | cuda:1 VRAM 12/24 GB | cuda:2 VRAM 3/24 GB";
    let seen: Vec<_> = read_line(line.as_bytes(), 1)
        .into_iter()
        .map(|reading| (reading.device.unwrap(), reading.mib / 1024.0, reading.of_mib.unwrap() / 1024.0))
        .collect();
    let gpu = |number: u32| format!("gpu {number}");
    assert_eq!(seen, [(gpu(0), 11.0, 24.0), (gpu(1), 12.0, 24.0), (gpu(2), 3.0, 24.0)]);
    let unnamed = read_line(b"GPU memory: 3 GB before, GPU memory: 5 GB after", 1);
    let amounts: Vec<_> = unnamed.iter().map(|reading| (reading.device.as_deref(), reading.mib / 1024.0)).collect();
    assert_eq!(amounts, [(None, 3.0), (None, 5.0)]);
}

#[test]
fn a_long_log_is_thinned_evenly_and_keeps_its_peaks() {
    let lines: u32 = 10_001;
    let mut log = String::new();
    for step in 0..lines {
        let used = if step == 777 { 23_999 } else { step };
        writeln!(log, "step {step} VRAM {used}/24000 MB").unwrap();
    }
    let trace = trace_memory(&mut log.as_bytes()).unwrap();
    assert!(trace.readings.len() <= KEPT && trace.readings.len() > KEPT / 3, "{}", trace.readings.len());
    assert_eq!(trace.left_out + trace.readings.len() as u64, u64::from(lines));
    let gaps: Vec<u64> = trace.readings.windows(2).map(|pair| pair[1].line - pair[0].line).collect();
    assert!(gaps.iter().all(|gap| *gap == gaps[0]), "{gaps:?}");
    assert_eq!((trace.peaks.len(), trace.peaks[0].line, trace.peaks[0].mib), (1, 778, 23_999.0));
}

#[test]
fn every_form_compiles() {
    assert_eq!(Forms::build().unwrap().printed.len(), FORMS.len());
}

proptest! {
    #[test]
    fn no_line_brings_it_down(bytes in proptest::collection::vec(any::<u8>(), 0..200), text in "(VRAM|rss|MA |[0-9,./ ]|GB|MiB|é){0,40}") {
        let _ = (read_line(&bytes, 1), read_line(text.as_bytes(), 1));
    }
}

#[test]
fn an_amount_that_no_machine_has_is_left_out() {
    let line = b"GPU 0 has a total capacity of 15.99 GiB of which 1.00 GiB is free. Including non-PyTorch memory, this process has 17179869184.00 GiB memory in use.";
    let figures: Vec<Figure> = read_line(line, 1).into_iter().map(|reading| reading.figure).collect();
    assert_eq!(figures, [Free]);
}
