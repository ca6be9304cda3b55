use super::{BackendModel, Channel, LeasedDevice, Ledger, ShapeBackend};
use burn::tensor::{FloatDType, Tensor};
use burn_router::BackendRouter;

type Plain = BackendRouter<Channel>;
const MIB: u64 = 1 << 20;

fn tensor(leased: &LeasedDevice) -> Tensor<Plain, 2> {
    Tensor::zeros([1024, 256], leased.device())
}

fn live_bytes(leased: &LeasedDevice) -> u64 {
    leased.read(|ledger| ledger.live())
}

#[test]
fn a_buffer_is_freed_with_its_last_holder() {
    let leased = LeasedDevice::new(BackendModel::Flex, None);
    let x = tensor(&leased);
    assert_eq!(live_bytes(&leased), MIB);
    let other = x.clone();
    let sum = x + other;
    assert_eq!(live_bytes(&leased), MIB, "both operands are gone with the sum made");
    drop(sum);
    assert_eq!(live_bytes(&leased), 0);
    assert_eq!(leased.read(Ledger::take_peak).peak, 2 * MIB, "two operands that are one, and the sum");
}

#[test]
fn read_back_values_take_no_memory_until_they_are_used() {
    let leased = LeasedDevice::new(BackendModel::Flex, None);
    let before = crate::memory::resident_bytes().unwrap();
    let read: Vec<_> =
        (0..64).map(|_| Tensor::<Plain, 2>::zeros([1 << 14, 1 << 12], leased.device()).into_data()).collect();
    assert_eq!(read.iter().map(|data| data.bytes.len() as u64).sum::<u64>(), 16 << 30);
    let taken = crate::memory::resident_bytes().unwrap().saturating_sub(before);
    assert!(taken < 1 << 30, "{taken} bytes for 16 GiB of zeros");
    let back = Tensor::<Plain, 2>::from_data(read[0].clone(), leased.device());
    assert_eq!(
        (live_bytes(&leased), back.dims()),
        (256 * MIB, [1 << 14, 1 << 12]),
        "they go back to the device unseen"
    );
    assert_eq!(tensor(&leased).slice([0..1, 0..3]).into_data().to_vec::<f32>().unwrap(), [0.0; 3]);
}

#[test]
fn unshared_inputs_are_overwritten() {
    let leased = LeasedDevice::new(BackendModel::Flex, None);
    let (x, y) = (tensor(&leased), tensor(&leased));
    leased.read(Ledger::take_peak);
    let z = (x * 2.0).exp() + y.clone();
    assert_eq!(leased.read(Ledger::take_peak).peak, 2 * MIB);
    let shared = z.clone().exp();
    assert_eq!(leased.read(Ledger::take_peak).peak, 3 * MIB);
    drop((y, z, shared));
    assert_eq!(live_bytes(&leased), 0);
}

#[test]
fn views_take_no_memory_until_they_must_be_copied() {
    let leased = LeasedDevice::new(BackendModel::Flex, None);
    let x = tensor(&leased);
    let turned = x.clone().transpose();
    let part = x.clone().slice([0..10, 0..256]);
    let flat = x.clone().reshape([1024 * 256]);
    assert_eq!(live_bytes(&leased), MIB);
    let copied = turned.clone().reshape([256 * 1024]);
    assert_eq!(live_bytes(&leased), 2 * MIB, "a transposed tensor is copied to be reshaped");
    drop((x, part, flat, copied));
    assert_eq!(live_bytes(&leased), MIB, "the view holds all of the buffer");
    drop(turned);
    assert_eq!(live_bytes(&leased), 0);
}

#[test]
fn sixteen_bit_values_take_half_the_memory_on_a_gpu() {
    let leased = LeasedDevice::new(BackendModel::Cube(FloatDType::BF16), None);
    let x = tensor(&leased);
    assert_eq!(live_bytes(&leased), MIB / 2);
    let whole = x.cast(FloatDType::F32);
    assert_eq!(live_bytes(&leased), MIB, "the cast is the only one left");
    drop(whole);
}

#[test]
fn tensors_kept_for_the_backward_pass_are_counted() {
    let leased = LeasedDevice::new(BackendModel::Flex, None);
    let make = || Tensor::<ShapeBackend, 2>::zeros([512, 512], leased.device());
    let (weight, x) = (make().require_grad(), make());
    let mut y = x;
    leased.read(Ledger::take_peak);
    for _ in 0..4 {
        y = y.matmul(weight.clone());
    }
    // The weight, the input and four products: all but the last are kept for the backward pass.
    assert_eq!(live_bytes(&leased), 6 * MIB);
    let gradients = y.sum().backward();
    assert!(weight.grad(&gradients).is_some());
    drop((gradients, weight));
    assert_eq!(live_bytes(&leased), 0, "nothing is left behind");
    assert!(leased.read(Ledger::take_peak).peak >= 7 * MIB);
}

#[test]
fn devices_are_independent() {
    let (one, other) = (LeasedDevice::new(BackendModel::Flex, None), LeasedDevice::new(BackendModel::Flex, None));
    let x = tensor(&one);
    assert_eq!((live_bytes(&one), live_bytes(&other)), (MIB, 0));
    drop(x);
    drop(one);
    let again = LeasedDevice::new(BackendModel::Flex, None);
    assert_eq!(again.read(Ledger::take_peak).peak, 0, "a counter that was given back starts over");
}
