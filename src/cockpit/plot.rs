//! Curves in text: a canvas of braille dots, and axes.
//!
//! A terminal cell holds 2 × 4 dots and one colour. Layers are painted over each other, and a cell
//! belongs to the last layer with a dot in it, so a bright line stays crisp above the dim band behind
//! it.

pub mod axis;
pub mod braille;
pub mod curve;
