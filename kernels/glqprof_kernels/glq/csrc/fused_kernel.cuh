// One layer's fused MoE: ids, weights and scalars are read on the device, all (token, expert) slots run at once.
//
// Phases: up (input transform of each token, up product) and down (output transform of the up sums, activation, input
// transform; down product; output transform, the token's experts in top-k order). Every thread block takes an equal part of a
// phase's items (fused_rows.cuh, fused_units.cuh), of all slots one after the other. What stands between the products every
// block makes for itself, of the slots that it needs: reading a slot's sums from L2 costs less than handing a vector on. What
// follows the down product is done by the block that has a slot's last item, after its own products. The phases are one
// cooperative launch or two launches.
//
// Memory between thread blocks: a word says by itself whether it is there (load_words), so nothing is counted or fenced
// before it is read. The block that finishes a slot clears all of its sums, for every reader of them is done then. Down waits
// for up's words of any block, the output for words of blocks with lower numbers: one launch needs all blocks resident, two
// launches need no more than that blocks start in ascending order.
//
// Most of the time that is not the products' goes to fetching instructions that a multiprocessor runs once or twice a launch,
// so there is one copy of the transform, in a loop over what it transforms.
#pragma once

#include "fused_output.cuh"
#include "fused_product.cuh"
#include "fused_vectors.cuh"

namespace glq {

// The batch is read from shared memory after the product again, so that the product has its registers.
template <class C>
__device__ __forceinline__ void run_batch(const FusedCall& call, typename C::Shared& shared, float* dynamic, const Batch& batch) {
  bool up = batch.phase == 0;
  int vector_base = batch.vector_base;
  float* scratch = dynamic + call.first_vector + batch.vectors * call.vector_stride[batch.phase];
  if (has_duty<C>(kItemsDuty) || has_duty<C>(kMoreItemsDuty)) {
    C::Share::template prepare<C>(call, shared, batch, C::kThreads - 1 - own_thread());
    if (threadIdx.x == C::kThreads - 1) shared.batch = batch;
    if (own_thread() % 32 < kFusedVectors) shared.peak[own_thread() % 32] = 0;
  }
  if (has_duty<C>(kCopyDuty)) prefetch_signs(call, shared, batch);
  // First every input vector; then the product; then, at the end of down, the slots whose last items the block had.
  Source source = up ? kToken : kSums;
  int vector = 0;
  int slot = 0;
  bool multiplied = false;
#pragma unroll 1
  for (;;) {
    int which = vector_base + vector;
    if (multiplied) {
      if ((slot + 1) * call.matrix[1].items > shared.batch.last) break;
      which = slot++;
      source = kSums;
    }
    const int n = source == kSums ? call.matrix[multiplied ? 1 : 0].rows : call.matrix[up ? 0 : 1].cols;
    int infinite = 0;
    auto load = [&](int first, bool inside, float(&v)[kRadix]) {
      if (source == kToken) {
        load_token(call, which, first, v);
      } else if (source == kSums) {
        const FusedMatrix& m = call.matrix[multiplied ? 1 : 0];
        prefetch_l1(m.su + static_cast<int64_t>(shared.expert[which]) * m.rows + first);
        if (!multiplied && first < call.matrix[1].cols) prefetch_l1(call.matrix[1].sv + first);
        load_sums<C::kFast ? 6 : 1>(call, multiplied ? 1 : 0, which, first, v);
      } else {
        int of_lane = 0;
        load_activation<C>(call, scratch, shared.expert[which], first, v, of_lane);
        infinite += inside ? of_lane : 0;
      }
    };
    auto meanwhile = [&] {
      if (!multiplied && vector == 0 && source != kActivation) C::Share::prefetch_codes(call, shared);
    };
    fused_hadamard<C::kThreads>(scratch, n, load, meanwhile);
    if (multiplied) {
      finish_slot<C>(call, shared, scratch, which);
      __syncthreads();  // scratch is written again
      continue;
    }
    if (source == kSums) {
      if (vector == 0) mark(call, shared.batch.phase, kPreviousDone);
      source = kActivation;
      continue;
    }
    // Every block that needs the slot was here: one alone counts.
    if (infinite != 0 && shared.batch.begin <= which * call.matrix[1].items) {
      atomicAdd(call.overflow, static_cast<unsigned long long>(infinite));
    }
    const int stride = call.vector_stride[up ? 0 : 1];
    store_vector<C>(shared, scratch, n, dynamic + call.first_vector + vector * stride, stride, vector);
    __syncthreads();  // scratch is written again
    ++vector;
    if (vector < shared.batch.vectors) {
      source = up ? kToken : kSums;
      continue;
    }
    mark(call, shared.batch.phase, kVectorsMade);
    auto ready = [&] {
      if (C::kSharedTable) wait_for_copy(&shared.table_ready);
      __syncthreads();
      mark(call, shared.batch.phase, kTableLoaded);
    };
    // Made here, so that it takes no registers elsewhere.
    const uint32_t window = C::kSharedTable ? shared_window(dynamic) : 0;
    Tables tables{reinterpret_cast<const unsigned char*>(call.table), call.fold_bytes, window, window + call.fold_bytes, {}};
#pragma unroll
    for (int k = 0; k < 5; ++k) tables.exponents.at[k] = call.exponents[k];
    product<C>(call, shared, dynamic, scratch, tables, ready);
    __syncthreads();
    mark(call, shared.batch.phase, kProductDone);
    if (shared.batch.phase == 0 || shared.batch.end < shared.batch.last) break;
    multiplied = true;
    up = false;  // and nothing that was known before the product is needed after it
    vector = vector_base = 0;
    slot = call.matrix[1].by_items(shared.batch.share);
  }
  mark(call, shared.batch.phase, kHandedOver);
}

// grid: any number of thread blocks, C::kThreads threads; both phases in one launch: all of them resident at once.
template <class C>
__global__ void __launch_bounds__(C::kThreads, 1) glq_fused_kernel(const GLQ_KERNEL_PARAMETER FusedCall call) {
#if defined(__CUDA_ARCH__) && (__CUDA_ARCH__ < 900 || __CUDA_ARCH__ >= 1200)
  if constexpr (C::kSharedTable) return;  // no such chip has the shared memory: plan_shared never chooses this kernel
#endif
  GLQ_DYNAMIC_SHARED(float, dynamic);
  auto& shared = *reinterpret_cast<typename C::Shared*>(dynamic);
  mark(call, call.first_phase, kStarted);
  if (C::kSharedTable && has_duty<C>(kCopyDuty)) {
    start_copy(dynamic + C::kTable, call.table, 4 * call.table_words, &shared.table_ready);
  }
  if (C::kSharedTable && cluster_blocks() > 1 && !has_duty<C>(kCopyDuty)) cluster_arrive();
  if (call.dependent) {
    // Down reads what was there before up, and up has waited for that, and up's sums, for which it waits slot by slot: every
    // block of up is on its multiprocessor already, or down would not have been started.
    if (call.first_phase == 0) wait_for_previous_kernel();
  }
  // A kernel that was launched to start early takes each multiprocessor as this one leaves it, and waits there for the end of
  // all of it before it touches more than constants. On sm_90 few fit beside a block of this one, which has nearly all shared memory.
  let_next_kernel_start();
  mark(call, call.first_phase, kPreviousDone);
  find_slots<C>(call, shared);
  mark(call, call.first_phase, kSlotsFound);
  if (C::kSharedTable && cluster_blocks() > 1 && !has_duty<C>(kCopyDuty)) cluster_wait();

#pragma unroll 1
  for (int phase = call.first_phase; phase <= call.last_phase; ++phase) {
    const FusedMatrix& m = call.matrix[phase];
    const int slots = shared.first_slot[call.tokens];
    if (phase == 1 && slots < call.tokens * call.top_k) {  // a token without experts is written by nobody else
      for (int t = blockIdx.x; t < call.tokens; t += gridDim.x) {
        if (shared.first_slot[t] == shared.first_slot[t + 1]) write_zeros<C>(call, t);
      }
    }
    const int begin = C::Share::first_item(call, m, slots, static_cast<int>(blockIdx.x));
    const int last = C::Share::first_item(call, m, slots, static_cast<int>(blockIdx.x) + 1);
    if (begin == last) continue;
    Batch batch = C::Share::next_batch(call, shared, phase, begin, last, begin);
    for (;;) {
      run_batch<C>(call, shared, dynamic, batch);
      __syncthreads();  // the items are written again
      if (shared.batch.end == shared.batch.last) break;
      batch = C::Share::next_batch(call, shared, shared.batch.phase, shared.batch.end, shared.batch.last, shared.batch.share);
      __syncthreads();  // the batch is written again
    }
    phase = shared.batch.phase;  // read again, like the batch
    __syncthreads();
  }
  if (C::kSharedTable) wait_for_copy(&shared.table_ready);  // also by a block without units: the copy writes to its memory
  // Words stood for up's sums; whoever waits for this kernel waits for up too.
  if (call.dependent && call.first_phase == 1) wait_for_previous_kernel();
}

}  // namespace glq
