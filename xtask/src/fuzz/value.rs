//! What the messages of a scene hold: something of everything.

use mp_queue::{Event, LaneReceiver, Queue, pair_in};
use serde::{Deserialize, Serialize};
use shm_core::{AliasedTensor, Arena, DynTensor, Elements, SharedTensor, Tensor};

use crate::Result;

/// Texts by which messages and names are found in the arena's file.
pub(crate) const TEXTS: [&str; 5] = ["MARK-ONE", "MARK-TWO", "MARK-TRE", "MARK-FOR", "MARK-FIV"];

/// A message of a scene.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Value {
    Own(String, Tensor<f32>),
    Views(
        String,
        SharedTensor<u8>,
        SharedTensor<u8>,
        AliasedTensor<u64>,
    ),
    Queues(String, Box<Queue<Tensor<u8>>>, Event),
    Lane(String, LaneReceiver<u32>),
    /// Too long for a cell.
    Long(String, Vec<Tensor<i16>>, DynTensor, String),
}

/// What else a message may be taken for.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Tensors(u8, String, DynTensor);

/// Elements that a tensor has, in whatever order.
fn sum(elements: Elements<'_, u8>) -> u64 {
    elements.map(u64::from).sum()
}

impl Value {
    /// One of each.
    pub(crate) fn all(arena: &Arena) -> Result<Vec<Value>> {
        let mark = |at: usize| TEXTS[at].to_owned();
        let shared = Tensor::<u8>::full_in(arena, [6, 5], 7)?.freeze();
        let view = shared.transpose(0, 1)?.narrow(0, 1, 3)?;
        let queue = Queue::bounded_in(arena, 2)?;
        queue.put(Tensor::full_in(arena, 9, 1)?)?;
        let (mut to, from) = pair_in(arena, 2)?;
        to.put(5)?;
        let many = (0..4).map(|i| Tensor::full_in(arena, [i, 2], 3));
        Ok(vec![
            Value::Own(mark(0), Tensor::full_in(arena, [3, 4], 1.0)?),
            Value::Views(mark(1), shared, view, Tensor::full_in(arena, 4, 2)?.alias()),
            Value::Queues(mark(2), Box::new(queue), Event::new_in(arena)?),
            Value::Lane(mark(3), from),
            Value::Long(
                mark(4),
                many.collect::<Result<_, shm_core::Error>>()?,
                Tensor::<f64>::full_in(arena, [2, 3], 0.5)?.into(),
                "long ".repeat(20),
            ),
        ])
    }

    /// Does with it what one does. Answers how often something was refused.
    pub(crate) fn use_up(self) -> u64 {
        let mut refused = 0;
        match self {
            Value::Own(_, mut tensor) => {
                tensor.fill(2.0);
                refused += u64::from(tensor.reshape([2, 6]).is_err());
                drop(tensor.freeze());
            }
            Value::Views(_, one, other, aliased) => {
                std::hint::black_box(sum(one.iter()) + sum(other.iter()));
                aliased.fill(3);
                refused += u64::from(aliased.fetch_add(&[0], 1).is_err());
                drop(other);
                // A name may hold it as well.
                drop(one.try_thaw());
            }
            Value::Queues(_, queue, event) => {
                event.set();
                refused += u64::from(queue.try_get().is_err());
                queue.close();
            }
            Value::Lane(_, mut lane) => refused += u64::from(lane.try_get().is_err()),
            Value::Long(_, tensors, dynamic, _) => {
                std::hint::black_box(dynamic.shape().to_vec());
                for tensor in tensors {
                    std::hint::black_box(tensor.to_vec());
                }
            }
        }
        refused
    }
}
