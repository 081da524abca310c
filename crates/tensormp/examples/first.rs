//! The first program of the README: four workers add up tensors that they read where they were written.

use tensormp::prelude::*;

fn sum(_rank: usize, work: Receiver<Tensor<f32>>) -> tensormp::Result<f64> {
    let mut total = 0.0;
    for tensor in &work {
        total += tensor.as_slice().iter().map(|&x| x as f64).sum::<f64>(); // read where it was written
    } // dropped here: the block goes back, whoever allocated it
    Ok(total)
}

fn main() -> tensormp::Result<()> {
    tensormp::init();
    let (sender, receiver) = Queue::bounded(8)?.split();
    let mut workers = spawn(sum, receiver, 4)?;
    for i in 0..100 {
        sender.put(Tensor::full([1024, 1024], i as f32)?)?; // a handle travels, not 4 MiB
    }
    drop(sender); // the last sender is gone: the workers' loops end
    println!("{}", workers.join()?.iter().sum::<f64>());
    Ok(())
}
