//! The real probe against a fake NVML library (examples/fake_nvml).
#![expect(clippy::unwrap_used, clippy::panic, reason = "the helpers of a test fail by panicking, as the test does")]

mod fake;

use downshift::probe::reader::{REOPEN, Reader, Source};
use downshift::protocol::gpu_error::{DRIVER_SILENT, GpuProblem};
use downshift::protocol::line;
use downshift::protocol::probe::{Ecc, Gpu, GpuMore, GpuProcess, Metric, Pcie, Reading, Standing, Throttle};
use fake::{Fake, Probe, unknown, wait_until};
use serde_json::{Value, json};
use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

#[test]
fn a_healthy_gpu_is_read_whole() {
    let fake = Fake::new(&json!({
        "nvmlDeviceGetComputeRunningProcesses_v3": [{"value": [{"pid": 10, "used": 1000}, {"pid": 4242, "used": 5_000_000}]}],
        "nvmlDeviceGetCurrentClocksThrottleReasons": [{"value": 4}],
    }));
    let expected = Gpu {
        index: 0,
        name: "NVIDIA GeForce RTX 4090".into(),
        driver: Metric::Is("580.95.05".into()),
        vram_total_bytes: Metric::Is(24_000_000_000),
        vram_used_bytes: Metric::Is(6_000_000_000),
        vram_worker_bytes: Metric::Is(5_000_000),
        temperature_c: Metric::Is(61.0),
        slowdown_c: Metric::Is(95.0),
        utilisation: Metric::Is(0.87),
        power_w: Metric::Is(312.5),
        power_limit_w: Metric::Is(450.0),
        sm_clock_mhz: Metric::Is(2505),
        throttle: Metric::Is(Throttle { thermal: false, power: true, hardware: false }),
        more: GpuMore {
            pci: Metric::Is("00000000:01:00.0".into()),
            cuda: Metric::Is("13.0".into()),
            vram_free_bytes: Metric::Is(18_000_000_000),
            vram_others_bytes: Metric::Is(5_995_000_000),
            memory_temperature_c: Metric::Is(74.0),
            max_c: Metric::Is(90.0),
            shutdown_c: Metric::Is(100.0),
            memory_utilisation: Metric::Is(0.11),
            memory_clock_mhz: Metric::Is(10_501),
            sm_clock_max_mhz: Metric::Is(3_105),
            ecc: unknown("not supported"),
            pcie: Metric::Is(Pcie { generation: 4, max_generation: 4, width: 16, max_width: 16 }),
            pcie_rx_bytes_s: Metric::Is(1_500_000),
            pcie_tx_bytes_s: Metric::Is(1_500_000),
            pcie_replays: Metric::Is(0),
            processes: Metric::Is(vec![
                GpuProcess { pid: 10, vram_bytes: Metric::Is(1000) },
                GpuProcess { pid: 4242, vram_bytes: Metric::Is(5_000_000) },
            ]),
            recovery: Metric::Is("none".into()),
            xids: Metric::Is(vec![]),
        },
    };
    assert_eq!(fake.read(Some(4242)), Ok(expected));
    assert_eq!(fake.read(None).unwrap().vram_worker_bytes, unknown("no worker"));
    assert_eq!(fake.read(Some(77)).unwrap().vram_worker_bytes, unknown("worker not listed"));
}

#[test]
fn wsl_refuses_some_metrics_and_gives_the_others() {
    let fake = Fake::new(&json!({
        "nvmlSystemGetDriverVersion": [{"value": "581.80"}],
        "nvmlDeviceGetUtilizationRates": [{"code": 3}],
        "nvmlDeviceGetEnforcedPowerLimit": [{"code": 3}],
        "nvmlDeviceGetComputeRunningProcesses_v3": [{"value": [{"pid": 4242, "used": null}]}],
    }));
    let gpu = fake.read(Some(4242)).unwrap();
    assert_eq!(gpu.driver, Metric::Is("581.80".into()));
    assert_eq!(gpu.utilisation, unknown("not supported"));
    assert_eq!(gpu.power_limit_w, unknown("not supported"));
    assert_eq!(gpu.vram_worker_bytes, unknown("not reported per process"));
    assert_eq!(gpu.vram_used_bytes, Metric::Is(6_000_000_000));
    assert_eq!(gpu.power_w, Metric::Is(312.5));
}

#[test]
fn ecc_counts_and_a_requested_reset_are_read() {
    let fake = Fake::new(&json!({
        "nvmlDeviceGetEccMode": [{"value": 1}],
        "nvmlDeviceGetFieldValues": [{"value": {"230": 1}}],
    }));
    let more = fake.read(None).unwrap().more;
    assert_eq!(more.ecc, Metric::Is(Ecc { corrected: 3, uncorrected: 0 }));
    assert_eq!(more.recovery, Metric::Is("reset the GPU".into()));
    assert_eq!(
        (more.memory_temperature_c.standing(), more.ecc.standing()),
        (Standing::NotSupported, Standing::Supported)
    );
}

#[test]
fn each_xid_event_is_reported_once_and_a_driver_without_events_gives_a_reason() {
    let now = Instant::now();
    let script = json!({"nvmlEventSetWait_v2": [{"value": 79}, {"after": 1, "value": 31}, {"after": 2, "code": 10, "delay_ms": 5}]});
    let fake = Fake::new(&script);
    let mut reader = fake.reader(now);
    let mut heard = Vec::new();
    wait_until("both events", || {
        heard.extend(reader.read(None, now).gpu.unwrap().more.xids.value().cloned().unwrap_or_default());
        heard.len() == 2
    });
    assert_eq!(heard, [79, 31]);
    assert_eq!(reader.read(None, now).gpu.unwrap().more.xids, Metric::Is(vec![]));

    for script in [
        json!({"nvmlDeviceGetSupportedEventTypes": [{"value": 0}]}),
        json!({"nvmlDeviceRegisterEvents": [{"code": 3}]}),
    ] {
        let fake = Fake::new(&script);
        let mut reader = fake.reader(now);
        wait_until("the refusal", || reader.read(None, now).gpu.unwrap().more.xids == unknown("not supported"));
    }
    let fake = Fake::without_symbol("nvmlEventSetFree");
    let mut reader = fake.reader(now);
    wait_until("the refusal", || reader.read(None, now).gpu.unwrap().more.xids == unknown("not supported"));
}

#[test]
fn a_transient_failure_gives_a_stale_value_that_expires() {
    let now = Instant::now();
    let fake = Fake::new(&json!({}));
    let mut reader = fake.reader(now);
    reader.read(None, now);
    fake.play(&json!({"nvmlDeviceGetTemperature": [{"code": 999}], "nvmlDeviceGetPowerUsage": [{"code": 3}]}));
    let gpu = reader.read(None, now + Duration::from_secs(4)).gpu.unwrap();
    let stale = Metric::Stale { value: 61.0, for_s: 4, why: "unknown driver error".into() };
    assert_eq!((&gpu.temperature_c, gpu.temperature_c.get()), (&stale, None), "never taken for a value of now");
    assert_eq!(gpu.temperature_c.standing(), Standing::Stale);
    assert_eq!(gpu.power_w, unknown("not supported"), "a refusal does not pass");
    let later = reader.read(None, now + Duration::from_secs(31)).gpu.unwrap();
    assert_eq!(later.temperature_c, unknown("unknown driver error"));
    fake.play(&json!({"*": [{"code": 15}]}));
    let lost = reader.read(None, now + Duration::from_secs(32)).gpu.unwrap();
    assert_eq!((lost.temperature_c.standing(), lost.more.ecc.standing()), (Standing::Lost, Standing::Lost));
}

#[test]
fn memory_that_is_never_released_belongs_to_another_process() {
    let now = Instant::now();
    let fake = Fake::new(&json!({
        "nvmlDeviceGetMemoryInfo_v2": [{"value": {"total": 24_000_000_000_u64, "used": 9_000_000_000_u64}}],
        "nvmlDeviceGetComputeRunningProcesses_v3": [{"value": [{"pid": 7, "used": 6_000_000_000_u64}]}],
    }));
    let mut reader = fake.reader(now);
    let with = reader.read(Some(7), now).gpu.unwrap();
    assert_eq!(with.more.vram_others_bytes, Metric::Is(3_000_000_000));
    let after = reader.read(None, now).gpu.unwrap();
    assert_eq!(after.vram_used_bytes, Metric::Is(9_000_000_000));
    assert_eq!(after.more.vram_others_bytes, unknown("no worker"));
    assert_eq!(after.more.processes.value().unwrap()[0].pid, 7, "who holds it");
}

#[test]
fn the_program_reports_new_kernel_log_lines() {
    let fake = Fake::new(&json!({}));
    let log = fake.dir.path().join("kern.log");
    fs::write(&log, "NVRM: Xid (PCI:0000:01:00): 13, old\n").unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_downshift"));
    command.arg("probe").arg("--run-dir").arg(fake.dir.path()).args(["--interval-ms", "10"]);
    command.env("DOWNSHIFT_NVML_PATH", fake.path()).env("DOWNSHIFT_KERNEL_LOG", &log);
    let mut probe = Probe(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap());
    let mut readings = BufReader::new(probe.0.stdout.take().unwrap()).lines();
    let mut next = move || line::decode::<Reading>(&readings.next().unwrap().unwrap()).unwrap().host.more.kernel;
    assert_eq!(next(), Metric::Is(vec![]));
    let mut file = fs::OpenOptions::new().append(true).open(&log).unwrap();
    writeln!(file, "NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus.").unwrap();
    wait_until("the line", || next().value().is_some_and(|lines| lines.len() == 1 && lines[0].text.contains("79")));
}

#[test]
fn a_process_list_that_grows_while_it_is_read_is_unknown() {
    let many: Vec<Value> = (0..9).map(|pid| json!({"pid": pid, "used": 1})).collect();
    let fake = Fake::new(&json!({
        "nvmlDeviceGetComputeRunningProcesses_v3": [{"value": many[..1]}, {"after": 1, "value": many}],
    }));
    assert_eq!(fake.read(Some(0)).unwrap().vram_worker_bytes, unknown("list changed while reading"));
}

#[test]
fn the_temperature_follows_the_card() {
    let now = Instant::now();
    let fake = Fake::new(&json!({"nvmlDeviceGetTemperature": [{"value": 60, "per_call": 7}]}));
    let mut reader = fake.reader(now);
    let seen: Vec<_> = (0..4).map(|_| reader.read(None, now).gpu.unwrap().temperature_c).collect();
    assert_eq!(seen, [60.0, 67.0, 74.0, 81.0].map(Metric::Is));
}

#[test]
fn a_lost_gpu_keeps_its_name_shows_no_zeros_and_is_opened_again_rarely() {
    let now = Instant::now();
    let fake = Fake::new(&json!({}));
    let mut reader = fake.reader(now);
    assert_eq!(reader.read(None, now).gpu.unwrap().temperature_c, Metric::Is(61.0));

    // Every device call fails, as after "fallen off the bus"; NVML itself would need a restart.
    fake.play(&json!({"*": [{"code": 15}], "nvmlInit_v2": [{"code": 9}]}));
    let lost = reader.read(Some(1), now).gpu.unwrap();
    assert_eq!(lost.name, "NVIDIA GeForce RTX 4090");
    let text = serde_json::to_value(&lost).unwrap();
    let unknown = text.as_object().unwrap().values().filter(|metric| **metric == json!({"not": "GPU is lost"})).count();
    assert_eq!(unknown, 10, "{text}");

    let shortly_before = now + REOPEN.mul_f64(0.99);
    assert!(reader.read(None, shortly_before).gpu.is_ok(), "not opened again yet");
    let refusal = reader.read(None, now + REOPEN).gpu.unwrap_err();
    assert!([GpuProblem::DriverNotLoaded, GpuProblem::LibraryShadowed].contains(&refusal.problem), "{refusal}");

    fake.play(&json!({}));
    assert_eq!(reader.read(None, now + REOPEN).gpu, Err(refusal), "tried again rarely");
    assert_eq!(reader.read(None, now + 2 * REOPEN).gpu.unwrap().temperature_c, Metric::Is(61.0));
}

#[test]
fn a_gpu_lost_in_the_middle_of_a_reading_keeps_what_was_read() {
    let now = Instant::now();
    let fake = Fake::new(&json!({}));
    let mut reader = fake.reader(now);
    let whole = reader.read(None, now).gpu.unwrap();
    fake.play(&json!({"*": [{"code": 15}], "nvmlDeviceGetHandleByIndex_v2": [], "nvmlDeviceGetMemoryInfo_v2": []}));
    let gpu = reader.read(None, now).gpu.unwrap();
    assert_eq!(gpu.name, whole.name);
    assert_eq!(gpu.vram_used_bytes, whole.vram_used_bytes);
    assert_eq!(gpu.temperature_c, unknown("GPU is lost"));
    assert_eq!(gpu.throttle, unknown("GPU is lost"));
}

#[test]
fn each_code_of_init_gives_a_sentence_of_its_own() {
    for (code, expected) in [
        (9, &[GpuProblem::DriverNotLoaded, GpuProblem::LibraryShadowed][..]),
        (17, &[GpuProblem::Blocked]),
        (18, &[GpuProblem::VersionMismatch]),
        (4, &[GpuProblem::NoPermission]),
        (999, &[GpuProblem::StartFailed]),
    ] {
        let refusal = Fake::new(&json!({"nvmlInit_v2": [{"code": code}]})).read(None).unwrap_err();
        assert!(expected.contains(&refusal.problem) && !refusal.fix.is_empty(), "{code}: {refusal}");
    }
    let none = Fake::new(&json!({"nvmlDeviceGetCount_v2": [{"value": 0}]})).read(None).unwrap_err();
    assert!([GpuProblem::NoGpu, GpuProblem::LibraryShadowed].contains(&none.problem), "{none}");
    let now = Instant::now();
    let second = Fake::new(&json!({})).reader_of(1, now).read(None, now).gpu.unwrap_err();
    assert_eq!(second.problem, GpuProblem::NoSuchGpu);
    assert!(second.fix.contains("there is no GPU 1"), "{second}");
}

#[test]
fn a_missing_library_says_which_and_what_to_do() {
    let now = Instant::now();
    let path = PathBuf::from("/nonexistent/libnvidia-ml.so.1");
    let source = Source { run_dir: "/".into(), gpu: 0, nvml_path: Some(path) };
    let reading = Reader::new(source, now).read(None, now);
    let refusal = reading.gpu.unwrap_err();
    assert_eq!(refusal.problem, GpuProblem::NamedLibraryMissing);
    let named = ["/nonexistent/libnvidia-ml.so.1", "DOWNSHIFT_NVML_PATH"];
    assert!(named.iter().all(|named| refusal.fix.contains(named)), "{refusal}");
    assert!(reading.host.ram_total_bytes.get().is_some());
}

#[test]
fn a_missing_symbol_costs_only_its_metric() {
    let gpu = Fake::without_symbol("nvmlDeviceGetMemoryInfo_v2").read(None).unwrap();
    assert_eq!(gpu.vram_total_bytes, unknown("not in this driver"));
    assert_eq!(gpu.temperature_c, Metric::Is(61.0));
    let refusal = Fake::without_symbol("nvmlInit_v2").read(None).unwrap_err();
    assert_eq!(refusal.problem, GpuProblem::LibraryUnusable);
}

/// The wrapper panics when dropped without this symbol.
#[test]
fn a_library_that_cannot_shut_down_is_left_open() {
    let now = Instant::now();
    let fake = Fake::without_symbol("nvmlShutdown");
    assert!(fake.reader_of(5, now).read(None, now).gpu.is_err(), "opened, then given up");
    let mut reader = fake.reader(now);
    assert!(reader.read(None, now).gpu.is_ok());
    fake.play(&json!({"*": [{"code": 15}]}));
    assert!(reader.read(None, now).gpu.is_ok());
    assert!(reader.read(None, now + REOPEN).gpu.is_ok(), "opened a second time");
    drop(reader);
}

#[test]
fn the_program_prints_one_reading_and_ends() {
    let fake = Fake::new(&json!({}));
    let mut probe = fake.spawn(&["--once"]);
    let text = io::read_to_string(probe.0.stdout.take().unwrap()).unwrap();
    assert!(probe.end().success());
    assert_eq!(text.lines().count(), 1, "{text}");
    let reading: Reading = line::decode(&text).unwrap();
    assert_eq!(reading.gpu.unwrap().temperature_c, Metric::Is(61.0));
    assert!(reading.host.disk_free_bytes.get().is_some());
}

#[test]
fn the_program_watches_the_given_worker_and_ends_with_its_keeper() {
    let own = std::process::id();
    let fake = Fake::new(&json!({
        "nvmlDeviceGetComputeRunningProcesses_v3": [{"value": [{"pid": own, "used": 123}]}],
    }));
    let mut probe = fake.spawn(&["--interval-ms", "10"]);
    let mut orders = probe.0.stdin.take().unwrap();
    let mut readings = BufReader::new(probe.0.stdout.take().unwrap()).lines();
    let mut next = move || line::decode::<Reading>(&readings.next().unwrap().unwrap()).unwrap();

    assert_eq!(next().gpu.unwrap().vram_worker_bytes, unknown("no worker"));
    writeln!(orders, "{{\"worker_pid\": {own}}}").unwrap();
    wait_until("a reading of the worker", || {
        let reading = next();
        let of_worker = (reading.gpu.unwrap().vram_worker_bytes.get(), reading.host.ram_worker_bytes.get());
        matches!(of_worker, (Some(123), Some(ram)) if ram > 100 * 1024) && reading.host.cpu.get().is_some()
    });
    writeln!(orders, "{{\"worker_pid\": null}}").unwrap();
    wait_until("a reading without a worker", || next().host.ram_worker_bytes == unknown("no worker"));
    drop(orders);
    assert!(probe.end().success());
}

#[test]
fn the_program_ends_with_its_keeper_while_nvml_hangs() {
    for symbol in ["nvmlInit_v2", "nvmlDeviceGetTemperature"] {
        let fake = Fake::new(&json!({symbol: [{"hang": true}]}));
        let mut probe = fake.spawn(&["--interval-ms", "10"]);
        wait_until("the hang", || fake.hangs());
        assert_eq!(probe.0.try_wait().unwrap(), None, "it hangs in {symbol}");
        drop(probe.0.stdin.take());
        probe.end();
    }
}

#[test]
fn the_program_ends_when_its_reader_is_gone() {
    let fake = Fake::new(&json!({}));
    let mut probe = fake.spawn(&["--interval-ms", "10"]);
    drop(probe.0.stdout.take());
    assert!(probe.end().success());
}

#[test]
fn the_machine_is_read_while_nvml_hangs_and_the_card_is_stale() {
    let fake = Fake::new(&json!({"nvmlDeviceGetTemperature": [{"after": 1, "hang": true}]}));
    let mut probe = fake.spawn(&["--interval-ms", "10"]);
    let mut readings = BufReader::new(probe.0.stdout.take().unwrap()).lines();
    let mut next = move || line::decode::<Reading>(&readings.next().unwrap().unwrap()).unwrap();
    assert_eq!(next().gpu.unwrap().temperature_c, Metric::Is(61.0));
    let mut stale = 0;
    wait_until("stale readings, with the machine", || {
        let Reading { gpu, host } = next();
        let old = matches!(&gpu.unwrap().temperature_c, Metric::Stale { why, .. } if why == DRIVER_SILENT);
        stale += usize::from(old && host.ram_used_bytes.get().is_some());
        stale > 20
    });
}
