use super::{Size, Window};

#[test]
fn windows_and_sizes_are_read() {
    assert_eq!("10..200".parse(), Ok(Window { from: Some(10), to: Some(200) }));
    assert_eq!("..".parse(), Ok(Window { from: None, to: None }));
    assert_eq!("..5".parse(), Ok(Window { from: None, to: Some(5) }));
    assert_eq!("1200x700".parse(), Ok(Size { width: 1200.0, height: 700.0 }));
    for wrong in ["9..3", "a..", "7", "-1.."] {
        assert!(wrong.parse::<Window>().unwrap_err().to_string().contains("FROM..TO"), "{wrong}");
    }
    for wrong in ["100x700", "1200", "x", "1200x99999", "nanx300"] {
        assert!(wrong.parse::<Size>().unwrap_err().to_string().contains("WIDTHxHEIGHT"), "{wrong}");
    }
}
