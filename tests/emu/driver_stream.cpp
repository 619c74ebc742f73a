// driver_stream.cpp - streams, events, stream capture and graphs.
#include "driver.h"

using namespace emu;

namespace emu {

Stream *streamOf(CUstream s) {
  if (s == nullptr || s == CU_STREAM_LEGACY || s == CU_STREAM_PER_THREAD)
    return defaultStream(currentContext()->device);
  for (Stream *x : allStreams())
    if (reinterpret_cast<CUstream>(x) == s)
      return x->device == currentContext()->device ? x : nullptr;
  return nullptr;
}

}  // namespace emu

namespace {

Event *eventOf(CUevent e) {
  auto *x = reinterpret_cast<Event *>(e);
  return x && x->magic == Event().magic ? x : nullptr;
}

struct GraphHandle { u32 magic = 0x47524148; std::shared_ptr<Graph> graph; };
GraphHandle *graphOf(void *g) {
  auto *x = static_cast<GraphHandle *>(g);
  return x && x->magic == GraphHandle().magic ? x : nullptr;
}
u64 captureSerial = 0;

}  // namespace

CUresult cuStreamCreate(CUstream *out, unsigned int flags) {
  EMU_ENTER_CONTEXT();
  if (!out || flags > CU_STREAM_NON_BLOCKING) return CUDA_ERROR_INVALID_VALUE;
  auto *s = new Stream;
  s->device = currentContext()->device;
  s->nonBlocking = flags & CU_STREAM_NON_BLOCKING;
  allStreams().push_back(s);
  *out = reinterpret_cast<CUstream>(s);
  return CUDA_SUCCESS;
}
CUresult cuStreamCreateWithPriority(CUstream *out, unsigned int flags, int) {
  return cuStreamCreate(out, flags);
}
CUresult cuStreamDestroy(CUstream h) {
  EMU_ENTER();
  auto &all = allStreams();
  for (size_t i = 0; i < all.size(); ++i)
    if (reinterpret_cast<CUstream>(all[i]) == h && !all[i]->isDefault) {
      if (all[i]->tail) drain(all[i]->tail);
      delete all[i];
      all.erase(all.begin() + long(i));
      return CUDA_SUCCESS;
    }
  return CUDA_ERROR_INVALID_HANDLE;
}
CUresult cuStreamSynchronize(CUstream h) {
  EMU_ENTER_CONTEXT();
  Stream *s = streamOf(h);
  if (!s) return CUDA_ERROR_INVALID_HANDLE;
  if (s->capture) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  if (s->tail) drain(s->tail);
  if (s->isDefault)
    for (Stream *o : allStreams())
      if (o->device == s->device && !o->nonBlocking && o->tail && !o->capture) drain(o->tail);
  return CUresult(stickyError());
}
CUresult cuStreamQuery(CUstream h) {
  EMU_ENTER_CONTEXT();
  Stream *s = streamOf(h);
  if (!s) return CUDA_ERROR_INVALID_HANDLE;
  if (s->capture) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  if (s->tail && !s->tail->done) runOne();
  if (stickyError()) return CUresult(stickyError());
  return !s->tail || s->tail->done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}
CUresult cuStreamGetFlags(CUstream h, unsigned int *flags) {
  EMU_ENTER_CONTEXT();
  Stream *s = streamOf(h);
  if (!s || !flags) return CUDA_ERROR_INVALID_HANDLE;
  *flags = s->nonBlocking ? CU_STREAM_NON_BLOCKING : CU_STREAM_DEFAULT;
  return CUDA_SUCCESS;
}
CUresult cuStreamGetCtx(CUstream h, CUcontext *c) {
  EMU_ENTER_CONTEXT();
  if (!streamOf(h)) return CUDA_ERROR_INVALID_HANDLE;
  *c = reinterpret_cast<CUcontext>(currentContext());
  return CUDA_SUCCESS;
}
CUresult cuStreamWaitEvent(CUstream h, CUevent he, unsigned int) {
  EMU_ENTER_CONTEXT();
  Stream *s = streamOf(h);
  Event *e = eventOf(he);
  if (!s || !e) return CUDA_ERROR_INVALID_HANDLE;
  if (s->capture && !e->capture) return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
  enqueueWait(s, e);
  return CUDA_SUCCESS;
}
CUresult cuLaunchHostFunc(CUstream h, CUhostFn fn, void *data) {
  EMU_ENTER_CONTEXT();
  Stream *s = streamOf(h);
  if (!s || !fn) return CUDA_ERROR_INVALID_HANDLE;
  enqueue(s, [=] { fn(data); });
  return CUDA_SUCCESS;
}

// ---- events -----------------------------------------------------------------------------------
CUresult cuEventCreate(CUevent *out, unsigned int flags) {
  EMU_ENTER_CONTEXT();
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  auto *e = new Event;
  e->timing = !(flags & CU_EVENT_DISABLE_TIMING);
  *out = reinterpret_cast<CUevent>(e);
  return CUDA_SUCCESS;
}
CUresult cuEventDestroy(CUevent h) {
  EMU_ENTER();
  Event *e = eventOf(h);
  if (!e) return CUDA_ERROR_INVALID_HANDLE;
  e->magic = 0;
  delete e;
  return CUDA_SUCCESS;
}
CUresult cuEventRecord(CUevent he, CUstream h) {
  EMU_ENTER_CONTEXT();
  Stream *s = streamOf(h);
  Event *e = eventOf(he);
  if (!s || !e) return CUDA_ERROR_INVALID_HANDLE;
  recordEvent(s, e);
  return CUDA_SUCCESS;
}
CUresult cuEventSynchronize(CUevent h) {
  EMU_ENTER_CONTEXT();
  Event *e = eventOf(h);
  if (!e) return CUDA_ERROR_INVALID_HANDLE;
  if (e->capture) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  if (e->command) drain(e->command);
  return CUresult(stickyError());
}
CUresult cuEventQuery(CUevent h) {
  EMU_ENTER_CONTEXT();
  Event *e = eventOf(h);
  if (!e) return CUDA_ERROR_INVALID_HANDLE;
  if (e->command && !e->command->done) runOne();
  if (stickyError()) return CUresult(stickyError());
  return !e->command || e->command->done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}
CUresult cuEventElapsedTime(float *ms, CUevent ha, CUevent hb) {
  EMU_ENTER_CONTEXT();
  Event *a = eventOf(ha), *b = eventOf(hb);
  if (!ms) return CUDA_ERROR_INVALID_VALUE;
  if (!a || !b || !a->timing || !b->timing || !a->command || !b->command)
    return CUDA_ERROR_INVALID_HANDLE;
  if (!a->command->done || !b->command->done) return CUDA_ERROR_NOT_READY;
  *ms = float(b->command->time - a->command->time);
  return CUDA_SUCCESS;
}

// ---- capture and graphs -----------------------------------------------------------------------
CUresult cuStreamBeginCapture(CUstream h, CUstreamCaptureMode) {
  EMU_ENTER_CONTEXT();
  Stream *s = streamOf(h);
  if (!s) return CUDA_ERROR_INVALID_HANDLE;
  if (s->isDefault) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  if (s->capture) return CUDA_ERROR_ILLEGAL_STATE;
  s->capture = std::make_shared<Graph>();
  s->capture->id = ++captureSerial;
  s->captureOrigin = true;
  s->captureTail.clear();
  return CUDA_SUCCESS;
}
CUresult cuStreamEndCapture(CUstream h, CUgraph *out) {
  EMU_ENTER_CONTEXT();
  Stream *s = streamOf(h);
  if (!s || !out) return CUDA_ERROR_INVALID_HANDLE;
  *out = nullptr;
  if (!s->capture) return CUDA_ERROR_ILLEGAL_STATE;
  if (!s->captureOrigin) return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
  std::shared_ptr<Graph> g = s->capture;
  // Every other stream of the capture must have been joined: its last node must lead to ours.
  std::vector<bool> reached(g->nodes.size());
  for (size_t n : s->captureTail) reached[n] = true;
  for (size_t n = g->nodes.size(); n-- > 0;)
    if (reached[n])
      for (size_t a : g->nodes[n].after) reached[a] = true;
  bool joined = true;
  for (Stream *o : allStreams()) {
    if (o->capture != g) continue;
    for (size_t n : o->captureTail) joined &= reached[n];
    o->capture.reset();
    o->captureTail.clear();
    o->captureOrigin = false;
  }
  if (!joined) return CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
  auto *handle = new GraphHandle;
  handle->graph = g;
  *out = reinterpret_cast<CUgraph>(handle);
  return CUDA_SUCCESS;
}
CUresult cuStreamIsCapturing(CUstream h, CUstreamCaptureStatus *status) {
  EMU_ENTER_CONTEXT();
  Stream *s = streamOf(h);
  if (!s || !status) return CUDA_ERROR_INVALID_HANDLE;
  *status = s->capture ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
  return CUDA_SUCCESS;
}
CUresult cuStreamGetCaptureInfo(CUstream h, CUstreamCaptureStatus *status, cuuint64_t *id,
                                CUgraph *graph, const CUgraphNode **deps,
                                const CUgraphEdgeData **edges, size_t *n) {
  EMU_ENTER_CONTEXT();
  Stream *s = streamOf(h);
  if (!s || !status) return CUDA_ERROR_INVALID_HANDLE;
  *status = s->capture ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
  if (id) *id = s->capture ? s->capture->id : 0;
  if (graph) *graph = nullptr;
  if (deps) *deps = nullptr;
  if (edges) *edges = nullptr;
  if (n) *n = 0;
  return CUDA_SUCCESS;
}
CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *) { return CUDA_SUCCESS; }

static CUresult instantiate(CUgraphExec *out, CUgraph g) {
  EMU_ENTER_CONTEXT();
  GraphHandle *x = graphOf(g);
  if (!x || !out) return CUDA_ERROR_INVALID_VALUE;
  auto *handle = new GraphHandle;
  handle->graph = x->graph;
  *out = reinterpret_cast<CUgraphExec>(handle);
  return CUDA_SUCCESS;
}
CUresult cuGraphInstantiate(CUgraphExec *out, CUgraph g, unsigned long long) {
  return instantiate(out, g);
}
CUresult cuGraphLaunch(CUgraphExec g, CUstream h) {
  EMU_ENTER_CONTEXT();
  Stream *s = streamOf(h);
  GraphHandle *x = graphOf(g);
  if (!s || !x) return CUDA_ERROR_INVALID_HANDLE;
  if (s->capture) return CUDA_ERROR_NOT_SUPPORTED;
  launchGraph(s, *x->graph);
  return CUDA_SUCCESS;
}
CUresult cuGraphGetNodes(CUgraph g, CUgraphNode *, size_t *n) {
  EMU_ENTER();
  GraphHandle *x = graphOf(g);
  if (!x || !n) return CUDA_ERROR_INVALID_VALUE;
  *n = x->graph->nodes.size();
  return CUDA_SUCCESS;
}
static CUresult destroyGraph(void *g) {
  EMU_ENTER();
  GraphHandle *x = graphOf(g);
  if (!x) return CUDA_ERROR_INVALID_VALUE;
  x->magic = 0;
  delete x;
  return CUDA_SUCCESS;
}
CUresult cuGraphDestroy(CUgraph g) { return destroyGraph(g); }
CUresult cuGraphExecDestroy(CUgraphExec g) { return destroyGraph(g); }
