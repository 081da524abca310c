//! What is written into a message is read as it was, in either form.

use super::*;
use crate::item::FULL;

fn there_and_back(item: &Item) -> (usize, Item) {
    let bytes = postcard::to_stdvec(item).unwrap();
    (bytes.len(), postcard::from_bytes(&bytes).unwrap())
}

#[test]
fn an_item_arrives_as_it_was_put_whether_it_is_like_most_or_not() {
    let short = Item {
        id: 7,
        parts: 1,
        members: vec![Member {
            root: 7,
            weight: FULL / 16,
        }],
        enqueued: 1 << 50,
        sequence: u64::MAX,
        tag: 3,
        payload: vec![1, 2, 3],
        ..Item::default()
    };
    let (length, same) = there_and_back(&short);
    assert!(length < 40, "{length} bytes");
    assert_eq!(format!("{same:?}"), format!("{short:?}"));
    let weight = FULL / 3;
    for long in [
        Item {
            part: 1,
            parts: 3,
            ..short.clone()
        },
        Item {
            parents: vec![5, 6],
            ..short.clone()
        },
        Item {
            gone: true,
            ..short.clone()
        },
        Item {
            copies: 3,
            ..short.clone()
        },
        Item {
            members: vec![Member { root: 7, weight }],
            ..short.clone()
        },
        Item {
            members: vec![Member { root: 8, weight: 1 }],
            ..short.clone()
        },
        Item::default(),
    ] {
        let (_, same) = there_and_back(&long);
        assert_eq!(format!("{same:?}"), format!("{long:?}"));
    }
}

#[test]
fn a_weight_that_there_cannot_be_is_refused() {
    assert!(postcard::from_bytes::<Item>(&[0, 7, 128, 0, 0, 0, 0, 0]).is_err());
    assert!(postcard::from_bytes::<Item>(&[0, 7, 120, 0, 0, 0, 0, 0]).is_ok());
}
