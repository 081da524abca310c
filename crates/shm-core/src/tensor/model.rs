//! Geometries against a model: a tensor as the plain list of the storage indices of its elements, and each view as what it
//! does to such a list.

use crate::tensor::dtype::Dtype;
use crate::tensor::geometry::Geometry;
use crate::tensor::shape::MAX_DIMS;
use proptest::prelude::*;
use std::collections::HashSet;

/// The index in the storage of each element, in row-major order.
#[derive(Clone, Debug, PartialEq)]
struct Model {
    shape: Vec<usize>,
    indices: Vec<usize>,
}

impl Model {
    fn contiguous(shape: &[usize]) -> Model {
        Model {
            shape: shape.to_vec(),
            indices: (0..shape.iter().product()).collect(),
        }
    }

    fn of(geometry: &Geometry) -> Model {
        Model {
            shape: geometry.shape().to_vec(),
            indices: geometry.indices().collect(),
        }
    }

    fn positions(shape: &[usize]) -> Vec<Vec<usize>> {
        let mut positions = vec![vec![]];
        for &length in shape {
            positions = positions
                .into_iter()
                .flat_map(|position| {
                    (0..length).map(move |at| [position.as_slice(), &[at]].concat())
                })
                .collect();
        }
        positions
    }

    fn at(&self, position: &[usize]) -> usize {
        let place = position
            .iter()
            .zip(&self.shape)
            .fold(0, |place, (at, length)| place * length + at);
        self.indices[place]
    }

    /// The tensor of `shape` whose element at each position is ours at `from(position)`.
    fn gather(&self, shape: Vec<usize>, from: impl Fn(&[usize]) -> Vec<usize>) -> Model {
        let indices = Model::positions(&shape)
            .iter()
            .map(|at| self.at(&from(at)))
            .collect();
        Model { shape, indices }
    }
}

/// A view, with numbers that are brought into range (or just out of it) when the shape is known.
#[derive(Clone, Debug)]
enum View {
    Slice(usize, usize, usize, usize),
    Narrow(usize, usize, usize),
    Select(usize, usize),
    Transpose(usize, usize),
    Permute(Vec<usize>),
    Squeeze(usize),
    Unsqueeze(usize),
    Expand(Vec<usize>),
    Reshape(Vec<usize>),
}

impl View {
    fn any() -> impl Strategy<Value = View> {
        let n = || 0..6_usize;
        let dims = || prop::collection::vec(1..4_usize, 0..5);
        prop_oneof![
            (n(), n(), n(), 0..4_usize)
                .prop_map(|(dim, start, end, step)| View::Slice(dim, start, end, step)),
            (n(), n(), n()).prop_map(|(dim, start, length)| View::Narrow(dim, start, length)),
            (n(), n()).prop_map(|(dim, index)| View::Select(dim, index)),
            (n(), n()).prop_map(|(a, b)| View::Transpose(a, b)),
            Just((0..4).collect::<Vec<_>>())
                .prop_shuffle()
                .prop_map(View::Permute),
            n().prop_map(View::Squeeze),
            n().prop_map(View::Unsqueeze),
            dims().prop_map(View::Expand),
            dims().prop_map(View::Reshape),
        ]
    }

    fn apply(&self, geometry: &Geometry) -> crate::Result<Geometry> {
        match self {
            View::Slice(dim, start, end, step) => geometry.slice(*dim, *start..*end, *step),
            View::Narrow(dim, start, length) => geometry.narrow(*dim, *start, *length),
            View::Select(dim, index) => geometry.select(*dim, *index),
            View::Transpose(a, b) => geometry.transpose(*a, *b),
            View::Permute(order) => geometry.permute(&View::order(order, geometry.ndim())),
            View::Squeeze(dim) => geometry.squeeze(*dim),
            View::Unsqueeze(dim) => geometry.unsqueeze(*dim),
            View::Expand(prefix) => geometry.expand(View::expanded(prefix, geometry.shape())),
            View::Reshape(dims) => geometry.reshape(View::reshaped(dims, geometry.numel())),
        }
    }

    /// What the view should be; `None` where it should be refused. Whether a reshape works depends on strides, which the
    /// model does not know: that is checked elsewhere.
    fn expected(&self, model: &Model) -> Option<Model> {
        let shape = &model.shape;
        let mut new = shape.clone();
        match self {
            View::Slice(dim, start, end, step) => {
                let length = *shape.get(*dim)?;
                (start <= end && *end <= length && *step > 0).then_some(())?;
                new[*dim] = (*start..*end).step_by(*step).count();
                Some(model.gather(new, |at| {
                    let mut at = at.to_vec();
                    at[*dim] = start + at[*dim] * step;
                    at
                }))
            }
            View::Narrow(dim, start, length) => {
                View::Slice(*dim, *start, start + length, 1).expected(model)
            }
            View::Select(dim, index) => {
                (index < shape.get(*dim)?).then_some(())?;
                new.remove(*dim);
                Some(model.gather(new, |at| [&at[..*dim], &[*index], &at[*dim..]].concat()))
            }
            View::Transpose(a, b) => {
                (*a < shape.len() && *b < shape.len()).then_some(())?;
                new.swap(*a, *b);
                Some(model.gather(new, |at| {
                    let mut at = at.to_vec();
                    at.swap(*a, *b);
                    at
                }))
            }
            View::Permute(order) => {
                let order = View::order(order, shape.len());
                let new = order
                    .iter()
                    .map(|&from| shape.get(from).copied())
                    .collect::<Option<Vec<_>>>()?;
                (new.len() == shape.len()).then_some(())?;
                Some(model.gather(new, |at| {
                    let mut from = vec![0; at.len()];
                    for (to, &dim) in order.iter().enumerate() {
                        from[dim] = at[to];
                    }
                    from
                }))
            }
            View::Squeeze(dim) => {
                if *shape.get(*dim)? == 1 {
                    return View::Select(*dim, 0).expected(model);
                }
                Some(model.clone())
            }
            View::Unsqueeze(dim) => {
                (*dim <= shape.len() && shape.len() < MAX_DIMS).then_some(())?;
                new.insert(*dim, 1);
                Some(model.gather(new, |at| [&at[..*dim], &at[*dim + 1..]].concat()))
            }
            View::Expand(prefix) => {
                let new = View::expanded(prefix, shape);
                (new.len() <= MAX_DIMS).then_some(())?;
                let extra = new.len() - shape.len();
                Some(model.gather(new, |at| {
                    at[extra..]
                        .iter()
                        .zip(shape)
                        .map(|(&at, &length)| if length == 1 { 0 } else { at })
                        .collect()
                }))
            }
            View::Reshape(dims) => {
                let new = View::reshaped(dims, model.indices.len());
                Some(Model {
                    shape: new,
                    indices: model.indices.clone(),
                })
            }
        }
    }

    /// A permutation of as many dimensions as there are, from one of more; too short if there are even more.
    fn order(order: &[usize], ndim: usize) -> Vec<usize> {
        order.iter().copied().filter(|&dim| dim < ndim).collect()
    }

    /// New dimensions on the left, and each length of 1 replaced.
    fn expanded(prefix: &[usize], shape: &[usize]) -> Vec<usize> {
        let grown = shape
            .iter()
            .map(|&length| if length == 1 { prefix.len() } else { length });
        prefix.iter().take(1).copied().chain(grown).collect()
    }

    /// `dims` brought to a product of `count`: divisors are kept, the rest goes into the last.
    fn reshaped(dims: &[usize], count: usize) -> Vec<usize> {
        let mut left = count;
        let mut new: Vec<usize> = dims
            .iter()
            .copied()
            .filter(|&length| {
                let fits = left > 0 && left.is_multiple_of(length);
                left = if fits { left / length } else { left };
                fits
            })
            .collect();
        if left != 1 {
            new.push(left);
        }
        new
    }
}

fn dtypes() -> impl Strategy<Value = Dtype> {
    prop::sample::select(&Dtype::ALL[..])
}

fn small_shapes() -> impl Strategy<Value = Vec<usize>> {
    prop::collection::vec(prop_oneof![9 => 1..5_usize, 1 => Just(0)], 0..5)
}

/// Mostly geometries that make sense, and some that hardly do: overlapping, negative, or far out.
fn geometries() -> impl Strategy<Value = Geometry> {
    let strides = prop_oneof![4 => -20..20_isize, 1 => any::<isize>()];
    let offset = prop_oneof![4 => 0..200_usize, 1 => any::<usize>()];
    let lengths = prop_oneof![8 => 0..5_usize, 1 => any::<usize>()];
    (
        dtypes(),
        prop::collection::vec((lengths, strides), 0..=MAX_DIMS),
        offset,
    )
        .prop_filter_map("does not fit", |(dtype, dims, offset)| {
            let (shape, strides): (Vec<_>, Vec<_>) = dims.into_iter().unzip();
            Geometry::new(dtype, &shape, &strides, offset).ok()
        })
}

/// Few enough positions to list, lengths of zero counted as one.
fn listable() -> impl Strategy<Value = Geometry> {
    geometries().prop_filter("too many positions", |geometry| {
        let lengths = geometry.shape().iter().map(|&length| length.max(1));
        lengths.product::<usize>() <= 2000
    })
}

proptest! {
    #[test]
    fn any_sequence_of_views_names_the_same_elements_as_the_model(
        dtype in dtypes(),
        shape in small_shapes(),
        views in prop::collection::vec(View::any(), 0..8),
    ) {
        let mut geometry = Geometry::contiguous(dtype, &shape).unwrap();
        let mut model = Model::contiguous(&shape);
        let storage = geometry.packed_bytes();
        let mut repeats = false;
        for view in &views {
            match (view.apply(&geometry), view.expected(&model)) {
                (Ok(got), Some(expected)) if expected.indices.len() <= 5000 => {
                    prop_assert_eq!(&Model::of(&got), &expected, "{:?} of {:?}", view, geometry);
                    geometry = got;
                    model = expected;
                }
                (Ok(_), Some(_)) => break, // has grown too large to go on with
                (Err(_), None) => {}
                // A reshape is refused only where equal steps cannot express it.
                (Err(_), Some(_)) if matches!(view, View::Reshape(_)) => prop_assert!(!geometry.is_contiguous()),
                (got, expected) => prop_assert!(false, "{view:?} of {geometry:?}: {got:?}, and the model says {expected:?}"),
            }
            repeats |= matches!(view, View::Expand(_));
            geometry.check(storage, 64).unwrap();
            let distinct: HashSet<_> = model.indices.iter().collect();
            prop_assert!(geometry.may_overlap() || distinct.len() == model.indices.len());
            // Views of a packed tensor that repeat nothing are known not to overlap.
            prop_assert!(repeats || !geometry.may_overlap(), "{:?}", geometry);
            let in_order = model.indices.windows(2).all(|pair| pair[1] == pair[0] + 1);
            prop_assert_eq!(geometry.is_contiguous(), in_order || model.indices.is_empty());
        }
    }

    #[test]
    fn a_transposed_tensor_is_reshaped_exactly_when_equal_steps_can_express_it(
        shape in prop::collection::vec(1..4_usize, 1..4),
        order in Just((0..3).collect::<Vec<usize>>()).prop_shuffle(),
        dims in prop::collection::vec(1..7_usize, 0..4),
    ) {
        let order = View::order(&order, shape.len());
        let geometry = Geometry::contiguous(Dtype::U8, &shape).unwrap().permute(&order).unwrap();
        let dims = View::reshaped(&dims, geometry.numel());
        let model = Model { shape: dims.clone(), indices: Model::of(&geometry).indices };
        // Strides exist iff along each dimension all steps are equal, wherever one stands in the others.
        let expressible = (0..dims.len()).all(|dim| {
            let steps: HashSet<isize> = Model::positions(&dims).into_iter().filter(|at| at[dim] + 1 < dims[dim]).map(|at| {
                let mut next = at.clone();
                next[dim] += 1;
                model.at(&next) as isize - model.at(&at) as isize
            }).collect();
            steps.len() <= 1
        });
        match geometry.reshape(&dims) {
            Ok(got) => prop_assert_eq!(Model::of(&got), model),
            Err(error) => prop_assert!(!expressible, "{}", error),
        }
    }

    #[test]
    fn the_span_covers_the_elements_and_nothing_more(geometry in listable()) {
        let size = geometry.dtype().size();
        let indices = Model::of(&geometry).indices;
        let span = geometry.byte_span();
        match (indices.iter().min(), indices.iter().max()) {
            (Some(first), Some(last)) => prop_assert_eq!(&span, &(first * size..(last + 1) * size)),
            _ => prop_assert!(span.is_empty()),
        }
        prop_assert!(geometry.check(span.end, 64).is_ok());
        prop_assert!(span.end == 0 || geometry.check(span.end - 1, 64).is_err());
    }

    #[test]
    fn positions_and_the_walk_agree(geometry in listable()) {
        let walked: Vec<_> = geometry.indices().collect();
        let found: Vec<_> =
            Model::positions(geometry.shape()).iter().map(|at| geometry.index_of(at).unwrap()).collect();
        prop_assert_eq!(walked, found);
    }

    #[test]
    fn no_overlap_is_claimed_only_where_there_is_none(geometry in listable()) {
        let indices = Model::of(&geometry).indices;
        let distinct: HashSet<_> = indices.iter().collect();
        prop_assert!(geometry.may_overlap() || distinct.len() == indices.len());
    }

    #[test]
    fn any_numbers_make_a_geometry_or_an_error(
        dtype in dtypes(),
        dims in prop::collection::vec((any::<usize>(), any::<isize>()), 0..=MAX_DIMS),
        offset in any::<usize>(),
        (a, b, c) in (any::<usize>(), any::<usize>(), any::<usize>()),
    ) {
        let (shape, strides): (Vec<_>, Vec<_>) = dims.into_iter().unzip();
        let _ = Geometry::contiguous(dtype, &shape);
        if let Ok(geometry) = Geometry::new(dtype, &shape, &strides, offset) {
            let _ = (geometry.narrow(a, b, c), geometry.slice(a % 9, b..=c, c), geometry.slice(a % 9, b.., c));
            let _ = (geometry.select(a % 9, b), geometry.expand([a, b, c]), geometry.reshape([a, b, c]));
            let _ = (geometry.unsqueeze(a % 9), geometry.index_of(&[a, b, c]), geometry.check(a, b));
            let _ = (geometry.may_overlap(), geometry.is_contiguous(), geometry.byte_span());
        }
    }

    #[test]
    fn a_geometry_survives_the_wire_and_takes_what_it_says(geometry in geometries(), tail in any::<Vec<u8>>()) {
        let mut bytes = geometry.to_bytes();
        let used = bytes.len();
        prop_assert!(used <= 2 + 17 * 10);
        bytes.extend(&tail);
        prop_assert_eq!(Geometry::decode(&bytes).unwrap(), (geometry, used));
        for cut in 0..used {
            prop_assert!(Geometry::decode(&bytes[..cut]).is_err());
        }
    }

    #[test]
    fn hostile_bytes_are_an_error_or_the_one_encoding_of_a_geometry(bytes in hostile()) {
        if let Ok((geometry, used)) = Geometry::decode(&bytes) {
            prop_assert_eq!(&geometry.to_bytes(), &bytes[..used]);
            // Whatever came out can be computed with.
            let _ = (geometry.check(1 << 20, 64), geometry.may_overlap(), geometry.is_contiguous());
            for dim in 0..=geometry.ndim() {
                let _ = (geometry.narrow(dim, 1, 1), geometry.select(dim, 0), geometry.unsqueeze(dim), geometry.slice(dim, .., 2));
            }
        }
    }
}

/// Bytes that get past the first checks often enough to reach the later ones.
fn hostile() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![any::<u8>(), 0..4_u8, Just(0x80), Just(0xff), Just(0x7f)];
    let random = prop::collection::vec(byte, 0..40);
    let flipped =
        (geometries(), any::<prop::sample::Index>(), 0..8_u32).prop_map(|(geometry, at, bit)| {
            let mut bytes = geometry.to_bytes();
            let at = at.index(bytes.len());
            bytes[at] ^= 1_u8 << bit;
            bytes
        });
    prop_oneof![
        random.clone(),
        (1..16_u8, 0..0x40_u8, random)
            .prop_map(|(dtype, head, rest)| [vec![dtype, head], rest].concat()),
        flipped,
    ]
}
