use super::{BELOW_ONE, Kind};
use crate::params::with_rank;
use burn::backend::{Flex, flex::FlexDevice};
use burn::tensor::{FloatDType, Tensor, TensorData, ops::IntTensorOps};
use downshift_core::config::moments::BLOCK;
use downshift_core::recipe::seed::Stream;
use proptest::prelude::*;

fn tensor(values: &[f32]) -> Tensor<Flex, 1> {
    Tensor::from_data(TensorData::new(values.to_vec(), [values.len()]), &FlexDevice)
}

fn numbers(tensor: Tensor<Flex, 1>) -> Vec<f32> {
    tensor.into_data().iter::<f32>().collect()
}

/// Encodes values in 8 bits and decodes them, with the given thresholds.
fn through(kind: Kind, values: &[f32], thresholds: Vec<f32>) -> Vec<f32> {
    let (codes, scales) = kind.encode_by::<Flex, 1>(tensor(values), thresholds);
    let codes = Flex::int_into_float(codes, FloatDType::F32);
    numbers(with_rank(kind.decode::<Flex>(codes, scales, &[values.len()])))
}

/// Returns the codes around a value that is `share` of the largest one, as shares.
fn codes_around(kind: Kind, share: f64) -> (f64, f64) {
    let (most, power) = if kind == Kind::First { (127.0, 2) } else { (255.0, 4) };
    let low = (share.powf(1.0 / f64::from(power)) * most).floor();
    let at = |code: f64| (code / most).powi(power);
    // Rounding in f32 may place a value that equals a code on either side of it.
    let low = if (at(low + 1.0) - share).abs() < share * 1e-5 { low + 1.0 } else { low };
    let below = if (at(low) - share).abs() < share * 1e-5 { (low - 1.0).max(0.0) } else { low };
    (at(below), at(low + 1.0).min(1.0))
}

/// Values over many orders of magnitude, including zeros and both signs.
fn mixed() -> impl Strategy<Value = Vec<f32>> {
    let number = prop_oneof![
        1 => Just(0.0_f32),
        8 => (-12.0_f32..4.0, any::<bool>()).prop_map(|(power, plus)| 10.0_f32.powf(power) * if plus { 1.0 } else { -1.0 }),
    ];
    prop::collection::vec(number, 1..700)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(64) })]

    #[test]
    fn a_first_moment_decodes_to_one_of_the_two_nearest_codes(values in mixed(), time in 0_u64..1_000_000) {
        let found = through(Kind::First, &values, Kind::First.thresholds(time));
        for (values, found) in values.chunks(BLOCK).zip(found.chunks(BLOCK)) {
            let scale = values.iter().fold(0.0_f32, |most, value| most.max(value.abs()));
            for (value, found) in values.iter().zip(found) {
                if *value == 0.0 {
                    prop_assert!(*found == 0.0);
                    continue;
                }
                prop_assert!(*found == 0.0 || found.signum() == value.signum());
                let (low, high) = codes_around(Kind::First, f64::from(value.abs() / scale));
                let share = f64::from(found.abs() / scale);
                prop_assert!(share >= low * (1.0 - 1e-5) && share <= high * (1.0 + 1e-5), "{} of {}: {}", value, scale, found);
                // Overall error: never more than 1.6 % of the largest value.
                prop_assert!((value - found).abs() <= scale * 0.016);
            }
        }
    }

    #[test]
    fn a_second_moment_decodes_to_a_nearest_code_and_never_to_zero(values in mixed(), time in 0_u64..1_000_000) {
        let values: Vec<f32> = values.into_iter().map(f32::abs).collect();
        let found = through(Kind::Second, &values, Kind::Second.thresholds(time));
        let lowest = (1.0_f64 / 255.0).powi(4);
        for (values, found) in values.chunks(BLOCK).zip(found.chunks(BLOCK)) {
            let scale = values.iter().copied().fold(0.0_f32, f32::max);
            for (value, found) in values.iter().zip(found) {
                prop_assert_eq!(*found > 0.0, scale > 0.0);
                if scale == 0.0 {
                    continue;
                }
                let (low, high) = codes_around(Kind::Second, f64::from(value / scale).max(lowest));
                let share = f64::from(found / scale);
                let fits = share >= low.max(lowest) * (1.0 - 1e-5) && share <= high * (1.0 + 1e-5);
                prop_assert!(fits, "{} of {}: {}", value, scale, found);
            }
        }
    }

    #[test]
    fn the_mean_over_updates_is_unbiased(share in 1e-6_f32..1.0, place in 0..BLOCK, begin in 0_u64..1_000_000) {
        for kind in [Kind::First, Kind::Second] {
            let mut values = vec![0.0_f32; BLOCK];
            values[place] = share;
            values[(place + 1) % BLOCK] = 1.0;
            let mean = (begin..begin + 1000)
                .map(|time| f64::from(through(kind, &values, kind.thresholds(time))[place]))
                .sum::<f64>() / 1000.0;
            let (low, high) = codes_around(kind, f64::from(share));
            prop_assert!((mean - f64::from(share)).abs() < (high - low) * 0.01, "{:?}: {} for {}", kind, mean, share);
        }
    }
}

#[test]
fn every_shape_round_trips_with_one_byte_per_code() {
    let values: Vec<f32> = (0..17 * 19 * 13).map(|index| (index as f32 * 0.37).sin()).collect();
    let cube = Tensor::<Flex, 3>::from_data(TensorData::new(values.clone(), [17, 19, 13]), &FlexDevice);
    let (codes, scales) = Kind::First.encode::<Flex, 3>(cube, 1);
    let codes_data = codes.clone().into_data();
    assert_eq!((codes_data.as_bytes().len(), scales.clone().into_data().as_bytes().len()), (17 * 256, 17 * 4));
    let codes = Flex::int_into_float(codes, FloatDType::F32);
    let back = with_rank::<Flex, 3>(Kind::First.decode::<Flex>(codes, scales, &[17, 19, 13]));
    assert_eq!(back.dims(), [17, 19, 13]);
    let back: Vec<f32> = back.into_data().iter::<f32>().collect();
    assert!(values.iter().zip(&back).all(|(value, back)| (value - back).abs() < 0.016));
}

/// Runs both moments of a block over many updates, exactly and in 8 bits, and returns the factor by which √v
/// is off: the mean over values that have a gradient, and over those that have none from a third of the way
/// on. The third result is the largest first moment of a silent value, as a share of its √v.
fn drift(thresholds: impl Fn(Kind, u64) -> Vec<f32>) -> [f32; 3] {
    let (mut stream, last) = (Stream::new(3), 3000_u64);
    let sizes: Vec<f32> = (0..BLOCK).map(|_| 10.0_f32.powf(stream.unit() * 2.0 - 2.0)).collect();
    let mut exact = (vec![0.0_f32; BLOCK], vec![0.0_f32; BLOCK]);
    let mut coded = exact.clone();
    for time in 1..=last {
        let mut noise = |place: usize| {
            let silent = place % 2 == 1 && time > last / 3;
            sizes[place] * if silent { 0.0 } else { (stream.unit() + stream.unit() + stream.unit() - 1.5) * 2.0 }
        };
        let gradient: Vec<f32> = (0..BLOCK).map(&mut noise).collect();
        for (first, second) in [(&mut exact.0, &mut exact.1), (&mut coded.0, &mut coded.1)] {
            for ((first, second), gradient) in first.iter_mut().zip(second).zip(&gradient) {
                *first = 0.9 * *first + 0.1 * gradient;
                *second = 0.999 * *second + 0.001 * gradient * gradient;
            }
        }
        coded.0 = through(Kind::First, &coded.0, thresholds(Kind::First, time));
        coded.1 = through(Kind::Second, &coded.1, thresholds(Kind::Second, time));
    }
    let off: Vec<f32> = exact.1.iter().zip(&coded.1).map(|(exact, coded)| (coded / exact).ln() / 2.0).collect();
    let mean = |begin: usize| (off.iter().skip(begin).step_by(2).sum::<f32>() * 2.0 / BLOCK as f32).exp();
    let silent = coded.0.iter().zip(&coded.1).skip(1).step_by(2);
    [mean(0), mean(1), silent.map(|(first, second)| first.abs() / second.sqrt()).fold(0.0, f32::max)]
}

#[test]
fn moments_do_not_drift_over_thousands_of_updates() {
    let [active, silent, stuck] = drift(Kind::thresholds);
    assert!((0.9..1.1).contains(&active) && (0.85..1.15).contains(&silent), "√v is off by {active}, {silent}");
    assert!(stuck < 0.05, "a first moment is stuck at {stuck}");
    // The reason for the thresholds: always rounding up, v climbs; rounding to the nearest, silent values never decay.
    let [climbing, ..] = drift(|_, _| vec![BELOW_ONE; BLOCK]);
    let [_, standing, _] = drift(|_, _| vec![0.5; BLOCK]);
    assert!(climbing > 2.0 && standing > 2.0, "{climbing}, {standing}");
}
