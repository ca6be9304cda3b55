//! The wire format of the contracts. Changing a line here breaks a running keeper's communication with a
//! worker or cockpit of another build: raise `PROTOCOL` with it.

use downshift::protocol::control::{Request, Target, Update};
use downshift::protocol::line::{decode, encode};
use downshift::protocol::metrics::Metrics;
use downshift::protocol::probe::{Metric, ProbeOrder};
use downshift::protocol::worker::{
    DoneReason, Eval, Event, Failed, FailureClass, Hello, Level, Order, PROTOCOL, Phase, Saved, Skipped, Step,
};
use downshift::recipe::batch::Position;
use proptest::prelude::*;

fn every_event() -> Vec<Event> {
    [earlier_events(), later_events()].concat()
}

fn earlier_events() -> Vec<Event> {
    let position = Position { epoch: 1, offset: 32, samples: 1469 };
    vec![
        Event::Hello(Hello {
            protocol: PROTOCOL,
            build: "0.1.0".to_owned(),
            pid: 4711,
            device: "cuda:0 NVIDIA GeForce RTX 4090".to_owned(),
            backend: "cuda bf16, fused".to_owned(),
            parameters: 11_242,
            resumed_from: Some(46),
            position,
            epoch_units: 1437,
            total_units: 43_110,
            total_steps: 1350,
            unit: "samples".to_owned(),
        }),
        Event::Phase { phase: Phase::Training },
        Event::Step(Step {
            step: 47,
            samples: 1501,
            epoch: 1,
            loss: Some(0.25),
            lr: Some(0.002),
            grad_norm: Some(1.5),
            micro_batches: 2,
            data_wait_ms: 0.125,
            compute_ms: 12.5,
            metrics: Metrics::new(),
            time_ms: Some(1_700_000_000_000),
            searches: true,
        }),
        Event::Skipped(Skipped {
            step: 48,
            samples: 1533,
            epoch: 1,
            lr: 0.002,
            what: "gradient".to_owned(),
            place: "head.weight".to_owned(),
            parameter: None,
            rescaled: false,
            applied: false,
        }),
        Event::Eval(Eval {
            step: 90,
            samples: 2874,
            loss: Some(0.5),
            metrics: Metrics::from([("accuracy".to_owned(), 0.875)]),
            ..Eval::default()
        }),
    ]
}

/// Returns the events of saves and ends.
fn later_events() -> Vec<Event> {
    vec![
        Event::Saved(Saved {
            path: "checkpoints/step-000000090".to_owned(),
            step: 90,
            samples: 2874,
            bytes: 150_000,
            pause_ms: 0.5,
            total_ms: 20.25,
            eval_loss: Some(0.5),
            metrics: Metrics::new(),
        }),
        Event::SaveFailed { step: 91, message: "No space left on device".to_owned(), of_disk: true },
        Event::StopRefused { step: 91, message: "No space left on device".to_owned() },
        Event::Note { level: Level::Warn, text: "half a \"quote\"".to_owned() },
        Event::Injected { fault: "oom@150*".to_owned(), step: 150 },
        Event::Failed(Failed {
            class: FailureClass::DeviceOutOfMemory,
            message: "can't allocate buffer of size: 8589934592".to_owned(),
            step: Some(150),
            thread: Some("DSD-0-0".to_owned()),
            injected: false,
        }),
        Event::Done { reason: DoneReason::Finished, step: 1350 },
    ]
}

#[test]
fn the_worker_events_keep_their_format() {
    let lines: String = every_event().iter().map(|event| encode(event).unwrap()).collect();
    insta::assert_snapshot!(lines);
    for (line, event) in lines.lines().zip(every_event()) {
        assert_eq!(decode::<Event>(line), Some(event));
    }
}

#[test]
fn orders_and_requests_keep_their_format() {
    let requests = [
        Request::Subscribe,
        Request::Shift { to: Target::Down },
        Request::Shift { to: Target::Rung("safe".to_owned()) },
        Request::Checkpoint,
        Request::Prune,
        Request::Restart,
        Request::Pause,
        Request::Resume,
        Request::Stop,
        Request::StandBy { rung: Some("safe".to_owned()) },
        Request::StandBy { rung: None },
        Request::Autopilot { on: false },
    ];
    let orders = [Order::Checkpoint, Order::Stop { checkpoint: true }, Order::Begin];
    let mut lines: String = requests.iter().map(|request| encode(request).unwrap()).collect();
    lines.extend(orders.iter().map(|order| encode(order).unwrap()));
    lines.push_str(&encode(&ProbeOrder { worker_pid: Some(7) }).unwrap());
    lines.push_str(&encode(&Update::Reply { accepted: false, message: "no".to_owned() }).unwrap());
    insta::assert_snapshot!(lines);
    for (line, request) in lines.lines().zip(requests) {
        assert_eq!(decode::<Request>(line), Some(request));
    }
}

#[test]
fn an_unknown_metric_is_a_word_never_a_number() {
    let unknown: Metric<u64> = Metric::Not("not supported".to_owned());
    assert_eq!(encode(&unknown).unwrap(), "{\"not\":\"not supported\"}\n");
    assert_eq!(encode(&Metric::Is(0_u64)).unwrap(), "{\"is\":0}\n");
}

#[test]
fn lines_that_are_not_messages_are_skipped() {
    for line in ["", "loss 0.5", "{", "{}", "[1]", "{\"event\":\"step\"}", "{\"event\":\"unheard of\"}", "null"] {
        assert_eq!(decode::<Event>(line), None, "{line}");
    }
}

proptest! {
    #[test]
    fn numbers_survive_the_wire_to_the_last_bit(loss in -1e300f64..1e300, lr in 0f64..1.0, step: u64) {
        let event = Event::Step(Step {
            step, samples: step, loss: Some(loss), lr: Some(lr), grad_norm: Some(loss.abs()), compute_ms: lr,
            metrics: Metrics::from([("val/fid".to_owned(), loss)]), ..Step::default()
        });
        prop_assert_eq!(decode::<Event>(&encode(&event).unwrap()), Some(event));
    }

    #[test]
    fn no_line_makes_the_decoder_panic(line in ".{0,200}") {
        let _ = decode::<Event>(&line);
        let _ = decode::<Request>(&line);
    }
}
