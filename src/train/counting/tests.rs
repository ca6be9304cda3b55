use super::{Channel, Counting, Habits, Ledger, Lent};
use burn::tensor::{FloatDType, Tensor};
use burn_router::BackendRouter;

type Plain = BackendRouter<Channel>;
const MIB: u64 = 1 << 20;

fn tensor(lent: &Lent) -> Tensor<Plain, 2> {
    Tensor::zeros([1024, 256], lent.device())
}

fn live(lent: &Lent) -> u64 {
    lent.read(|ledger| ledger.live())
}

#[test]
fn a_buffer_is_there_as_long_as_somebody_holds_it() {
    let lent = Lent::new(Habits::Flex);
    let x = tensor(&lent);
    assert_eq!(live(&lent), MIB);
    let other = x.clone();
    let sum = x + other;
    assert_eq!(live(&lent), MIB, "both operands are gone with the sum made");
    drop(sum);
    assert_eq!(live(&lent), 0);
    assert_eq!(lent.read(Ledger::look).peak, 2 * MIB, "two operands that are one, and the sum");
}

#[test]
fn values_that_are_read_take_no_memory_until_somebody_looks() {
    let lent = Lent::new(Habits::Flex);
    let before = crate::train::memory::resident().unwrap();
    let read: Vec<_> =
        (0..64).map(|_| Tensor::<Plain, 2>::zeros([1 << 14, 1 << 12], lent.device()).into_data()).collect();
    assert_eq!(read.iter().map(|data| data.bytes.len() as u64).sum::<u64>(), 16 << 30);
    let taken = crate::train::memory::resident().unwrap().saturating_sub(before);
    assert!(taken < 1 << 30, "{taken} bytes for 16 GiB of zeros");
    let back = Tensor::<Plain, 2>::from_data(read[0].clone(), lent.device());
    assert_eq!((live(&lent), back.dims()), (256 * MIB, [1 << 14, 1 << 12]), "they go back to the device unseen");
    assert_eq!(tensor(&lent).slice([0..1, 0..3]).into_data().to_vec::<f32>().unwrap(), [0.0; 3]);
}

#[test]
fn what_nobody_else_holds_is_written_into() {
    let lent = Lent::new(Habits::Flex);
    let (x, y) = (tensor(&lent), tensor(&lent));
    lent.read(Ledger::look);
    let z = (x * 2.0).exp() + y.clone();
    assert_eq!(lent.read(Ledger::look).peak, 2 * MIB);
    let shared = z.clone().exp();
    assert_eq!(lent.read(Ledger::look).peak, 3 * MIB);
    drop((y, z, shared));
    assert_eq!(live(&lent), 0);
}

#[test]
fn views_take_nothing_until_they_have_to_be_copied() {
    let lent = Lent::new(Habits::Flex);
    let x = tensor(&lent);
    let turned = x.clone().transpose();
    let part = x.clone().slice([0..10, 0..256]);
    let flat = x.clone().reshape([1024 * 256]);
    assert_eq!(live(&lent), MIB);
    let copied = turned.clone().reshape([256 * 1024]);
    assert_eq!(live(&lent), 2 * MIB, "a transposed tensor is copied to be reshaped");
    drop((x, part, flat, copied));
    assert_eq!(live(&lent), MIB, "the view holds all of the buffer");
    drop(turned);
    assert_eq!(live(&lent), 0);
}

#[test]
fn a_card_holds_sixteen_bit_numbers_in_half_the_room() {
    let lent = Lent::new(Habits::Cube(FloatDType::BF16));
    let x = tensor(&lent);
    assert_eq!(live(&lent), MIB / 2);
    let whole = x.cast(FloatDType::F32);
    assert_eq!(live(&lent), MIB, "the cast is the only one left");
    drop(whole);
}

#[test]
fn the_backward_pass_is_kept_for_as_burn_keeps_for_it() {
    let lent = Lent::new(Habits::Flex);
    let make = || Tensor::<Counting, 2>::zeros([512, 512], lent.device());
    let (weight, x) = (make().require_grad(), make());
    let mut y = x;
    lent.read(Ledger::look);
    for _ in 0..4 {
        y = y.matmul(weight.clone());
    }
    // The weight, the input and four products: all but the last are kept for the backward pass.
    assert_eq!(live(&lent), 6 * MIB);
    let gradients = y.sum().backward();
    assert!(weight.grad(&gradients).is_some());
    drop((gradients, weight));
    assert_eq!(live(&lent), 0, "nothing is left behind");
    assert!(lent.read(Ledger::look).peak >= 7 * MIB);
}

#[test]
fn counters_do_not_meet() {
    let (one, other) = (Lent::new(Habits::Flex), Lent::new(Habits::Flex));
    let x = tensor(&one);
    assert_eq!((live(&one), live(&other)), (MIB, 0));
    drop(x);
    drop(one);
    let again = Lent::new(Habits::Flex);
    assert_eq!(again.read(Ledger::look).peak, 0, "a counter that was given back begins anew");
}
