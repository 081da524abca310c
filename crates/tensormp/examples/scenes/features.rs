//! What is kept of a frame: how its light is distributed, and a very small picture of it.
//!
//! This is the step worth spreading over processes: it looks at every pixel, once. Both features are shares of the
//! whole, so frames of any size and light can be compared.

use crate::video::Format;

/// Bins of the luma histogram, from black to white; each holds its share of the pixels, so they add up to 1.
pub(crate) const HISTOGRAM: usize = 64;
/// Columns and rows of the small picture.
pub(crate) const GRID: (usize, usize) = (16, 9);
/// Cells of one plane of the small picture.
pub(crate) const CELLS: usize = GRID.0 * GRID.1;
/// Means of all cells: luma, then Cb, then Cr, row by row, from 0 to 1. Without chroma those are 0.5.
pub(crate) const BLOCKS: usize = 3 * CELLS;

/// Computes the features of one frame.
///
/// `luma` holds [`Format::luma_len`] bytes, `chroma` [`Format::chroma_len`] (Cb, then Cr); `histogram` takes
/// [`HISTOGRAM`] values, `blocks` takes [`BLOCKS`].
pub(crate) fn features(
    format: &Format,
    luma: &[u8],
    chroma: &[u8],
    histogram: &mut [f32],
    blocks: &mut [f32],
) {
    assert_eq!(luma.len(), format.luma_len());
    assert_eq!(chroma.len(), format.chroma_len());
    assert_eq!(histogram.len(), HISTOGRAM);
    assert_eq!(blocks.len(), BLOCKS);

    let (luma_blocks, chroma_blocks) = blocks.split_at_mut(CELLS);
    let mut counter = Counter::default();
    means(luma, format.width, format.height, luma_blocks, |row| {
        counter.count(row)
    });
    counter.shares(luma.len(), histogram);
    if chroma.is_empty() {
        chroma_blocks.fill(0.5);
        return;
    }
    let (cb, cr) = chroma.split_at(chroma.len() / 2);
    let (cb_blocks, cr_blocks) = chroma_blocks.split_at_mut(CELLS);
    means(
        cb,
        format.chroma_width,
        format.chroma_height,
        cb_blocks,
        |_| {},
    );
    means(
        cr,
        format.chroma_width,
        format.chroma_height,
        cr_blocks,
        |_| {},
    );
}

/// Means of a plane's cells. Every row also goes to `also`, while it is in the cache.
fn means(
    plane: &[u8],
    width: usize,
    height: usize,
    cells: &mut [f32],
    mut also: impl FnMut(&[u8]),
) {
    let columns: [_; GRID.0] = std::array::from_fn(|column| stretch(column, GRID.0, width));
    let mut sums = [0_u64; CELLS];
    let mut next_row = 0;
    for (row, sums) in sums.chunks_exact_mut(GRID.0).enumerate() {
        let lines = stretch(row, GRID.1, height);
        for y in lines {
            let line = &plane[y * width..][..width];
            for (sum, column) in sums.iter_mut().zip(&columns) {
                let pixels = &line[column.clone()];
                *sum += u64::from(pixels.iter().map(|&pixel| u32::from(pixel)).sum::<u32>());
            }
            // Cells of planes with fewer rows than the grid share rows; each row is shown once.
            if y >= next_row {
                also(line);
                next_row = y + 1;
            }
        }
    }
    for (index, (cell, sum)) in cells.iter_mut().zip(sums).enumerate() {
        let pixels = columns[index % GRID.0].len() * stretch(index / GRID.0, GRID.1, height).len();
        *cell = sum as f32 / (255 * pixels) as f32;
    }
}

/// The part of `size` pixels that belongs to cell `index` of `cells`: never empty, and together they cover all.
fn stretch(index: usize, cells: usize, size: usize) -> std::ops::Range<usize> {
    let from = index * size / cells;
    let to = ((index + 1) * size / cells).max(from + 1);
    from..to
}

/// Counts values. Neighbouring pixels are often equal, so they go to different tables: adding to the same number
/// again would wait for the addition before.
struct Counter([[u32; 256]; 4]);

impl Default for Counter {
    fn default() -> Self {
        Self([[0; 256]; 4])
    }
}

impl Counter {
    fn count(&mut self, pixels: &[u8]) {
        let [first, second, third, fourth] = &mut self.0;
        let (quads, rest) = pixels.as_chunks::<4>();
        for &[a, b, c, d] in quads {
            first[usize::from(a)] += 1;
            second[usize::from(b)] += 1;
            third[usize::from(c)] += 1;
            fourth[usize::from(d)] += 1;
        }
        for &pixel in rest {
            first[usize::from(pixel)] += 1;
        }
    }

    fn shares(&self, pixels: usize, histogram: &mut [f32]) {
        const VALUES: usize = 256 / HISTOGRAM;
        for (bin, share) in histogram.iter_mut().enumerate() {
            let values = bin * VALUES..(bin + 1) * VALUES;
            let count: u32 = self.0.iter().flat_map(|table| &table[values.clone()]).sum();
            *share = count as f32 / pixels as f32;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(format: &Format, luma: &[u8], chroma: &[u8]) -> ([f32; HISTOGRAM], [f32; BLOCKS]) {
        let (mut histogram, mut blocks) = ([9.0; HISTOGRAM], [9.0; BLOCKS]);
        features(format, luma, chroma, &mut histogram, &mut blocks);
        (histogram, blocks)
    }

    #[test]
    fn a_flat_frame_has_one_bin_and_equal_blocks() {
        let format = Format::yuv420(50, 31);
        let (histogram, blocks) = of(
            &format,
            &vec![102; format.luma_len()],
            &vec![51; format.chroma_len()],
        );
        assert_eq!(histogram[102 / 4], 1.0);
        assert_eq!(histogram.iter().sum::<f32>(), 1.0);
        assert!(blocks[..CELLS].iter().all(|&mean| mean == 0.4));
        assert!(blocks[CELLS..].iter().all(|&mean| mean == 0.2));
    }

    #[test]
    fn blocks_are_the_means_of_their_pixels() {
        let format = Format::yuv420(160, 90);
        let mut luma = vec![0; format.luma_len()];
        // One cell is 10×10 here: half of the one in column 3, row 2 is white.
        for y in 20..30 {
            luma[y * 160 + 30..y * 160 + 35].fill(255);
        }
        let (histogram, blocks) = of(&format, &luma, &vec![128; format.chroma_len()]);
        for (index, &mean) in blocks[..CELLS].iter().enumerate() {
            assert_eq!(
                mean,
                if index == 2 * 16 + 3 { 0.5 } else { 0.0 },
                "cell {index}"
            );
        }
        assert_eq!(histogram[63], 50.0 / (160.0 * 90.0));
    }

    #[test]
    fn tiny_frames_and_frames_without_chroma_have_features_too() {
        for (width, height) in [(1, 1), (3, 2), (16, 9), (17, 1)] {
            let format = Format {
                chroma_width: 0,
                chroma_height: 0,
                ..Format::yuv420(width, height)
            };
            let (histogram, blocks) = of(&format, &vec![255; width * height], &[]);
            assert_eq!(histogram[63], 1.0, "{width}×{height}");
            assert!(
                blocks[..CELLS].iter().all(|&mean| mean == 1.0),
                "{width}×{height}"
            );
            assert!(
                blocks[CELLS..].iter().all(|&mean| mean == 0.5),
                "{width}×{height}"
            );
        }
    }
}
