//! Puts back in order what several workers finished in any order.

use std::collections::BTreeMap;

use crate::error::{Error, Result};

/// Holds items back until all those before them have come.
#[derive(Debug)]
pub(crate) struct Reorder<T> {
    waiting: BTreeMap<u64, T>,
    next: u64,
}

impl<T> Reorder<T> {
    pub(crate) fn new() -> Self {
        Self {
            waiting: BTreeMap::new(),
            next: 0,
        }
    }

    /// Takes item `number`, counted from 0.
    pub(crate) fn put(&mut self, number: u64, item: T) -> Result<()> {
        if number < self.next || self.waiting.insert(number, item).is_some() {
            return Err(Error::transport(
                "detect",
                format!("frame {number} arrived twice"),
            ));
        }
        Ok(())
    }

    /// Gives the next item, if it is there.
    pub(crate) fn take(&mut self) -> Option<T> {
        let item = self.waiting.remove(&self.next)?;
        self.next += 1;
        Some(item)
    }

    /// Checks that nothing is left behind a gap, and says how many items there were.
    pub(crate) fn finish(&self) -> Result<u64> {
        match self.waiting.first_key_value() {
            None => Ok(self.next),
            Some((later, _)) => {
                let problem = format!("frame {} never arrived, frame {later} did", self.next);
                Err(Error::transport("detect", problem))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_come_out_in_order_whatever_the_order_they_went_in() {
        let mut order = Reorder::new();
        let mut out = Vec::new();
        for number in [1, 2, 0, 5, 3, 4] {
            order.put(number, number).unwrap();
            out.extend(std::iter::from_fn(|| order.take()));
        }
        assert_eq!(out, [0, 1, 2, 3, 4, 5]);
        assert_eq!(order.finish(), Ok(6));
    }

    #[test]
    fn a_lost_item_and_a_repeated_one_are_errors() {
        let mut order = Reorder::new();
        order.put(0, ()).unwrap();
        assert!(order.put(0, ()).is_err());
        order.take().unwrap();
        assert!(order.put(0, ()).is_err());
        order.put(2, ()).unwrap();
        let lost = order.finish().unwrap_err().to_string();
        assert!(lost.contains("frame 1 never arrived"), "{lost}");
    }
}
