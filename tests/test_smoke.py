def test_glyphs_load(glyphs):
    import cfsl
    t = cfsl.Tasks(glyphs, cfsl.TaskSpec.type_b(nss=3))[17]
    assert t.target.images.shape == (75, 1, 28, 28)

def test_omni(omniglot):
    assert len(omniglot.pixels) == 32460
def test_pic(glyphs):
    import cfsl
    t = cfsl.Tasks(glyphs, cfsl.TaskSpec.type_b(nss=3))[17]
    cfsl.draw_task(t)
